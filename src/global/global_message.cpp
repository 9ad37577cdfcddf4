// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/global/global_message.hpp>

#include "core/little_endian.hpp"

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;
using result = global_message::result;

bool introduces(kind k) noexcept { return k == kind::join || k == kind::welcome; }

// Whether the addresses neither wrap around nor exceed the range of `remote_ptr`.
bool is_segment(const remote_buffer& s) noexcept {
  return s.size != 0 && s.size <= max_segment_bytes && s.address <= UINT64_MAX - s.size;
}

} // namespace

error_code error_of(result r) {
  switch (r) {
  case result::ok:
    return {};
  case result::node_in_use:
    return error::node_in_use;
  case result::no_memory:
    return make_error_code(boost::system::errc::not_enough_memory);
  case result::invalid:
    return asio::error::invalid_argument;
  }
  return error::protocol_violation;
}

std::vector<std::byte> encode(const global_message& m) {
  const std::size_t tail = introduces(m.what) ? m.segments.size() * global_message::segment_size
                           : m.what == kind::allocate ? sizeof(m.alignment)
                                                      : 0;
  std::vector<std::byte> bytes(global_message::base_size + tail);
  std::byte* p = bytes.data();
  p[0] = static_cast<std::byte>(m.what);
  if (introduces(m.what)) {
    p[1] = static_cast<std::byte>(m.atomics);
    put<std::uint16_t>(p + 2, m.node);
    put<std::uint32_t>(p + 4, global_message::version);
    put<std::uint64_t>(p + 8, m.incarnation);
    p += global_message::base_size;
    for (const remote_buffer& s : m.segments) {
      put<std::uint64_t>(p, s.address);
      put<std::uint64_t>(p + 8, s.size);
      put<std::uint32_t>(p + 16, s.rkey);
      p += global_message::segment_size;
    }
    return bytes;
  }
  p[1] = static_cast<std::byte>(m.status);
  put<std::uint16_t>(p + 2, m.segment);
  put<std::uint32_t>(p + 4, m.id);
  put<std::uint64_t>(p + 8, m.value);
  if (m.what == kind::allocate)
    put<std::uint64_t>(p + 16, m.alignment);
  return bytes;
}

bool decode(std::span<const std::byte> bytes, global_message& m) {
  if (bytes.size() < global_message::base_size)
    return false;
  const std::byte* p = bytes.data();
  const std::size_t tail = bytes.size() - global_message::base_size;
  const auto what = std::to_integer<std::uint8_t>(p[0]);
  if (what < std::uint8_t(kind::join) || what > std::uint8_t(kind::woken))
    return false;
  m = {};
  m.what = kind(what);
  const auto second = std::to_integer<std::uint8_t>(p[1]);
  if (introduces(m.what)) {
    if (second > IBV_ATOMIC_GLOB || get<std::uint32_t>(p + 4) != global_message::version ||
        tail % global_message::segment_size != 0 || bytes.size() > global_message::max_size)
      return false;
    m.atomics = ibv_atomic_cap(second);
    m.node = get<std::uint16_t>(p + 2);
    m.incarnation = get<std::uint64_t>(p + 8);
    for (p += global_message::base_size; p != bytes.data() + bytes.size();
         p += global_message::segment_size) {
      const remote_buffer s{get<std::uint64_t>(p), get<std::uint64_t>(p + 8),
                            get<std::uint32_t>(p + 16)};
      if (!is_segment(s) || get<std::uint32_t>(p + 20) != 0)
        return false;
      m.segments.push_back(s);
    }
    return m.node != 0 && m.node <= max_node;
  }
  const auto segment = get<std::uint16_t>(p + 2);
  if (second > std::uint8_t(result::invalid) || segment >= global_message::max_segments ||
      tail != (m.what == kind::allocate ? sizeof(m.alignment) : 0))
    return false;
  m.status = result(second);
  m.segment = static_cast<segment_id>(segment);
  m.id = get<std::uint32_t>(p + 4);
  m.value = get<std::uint64_t>(p + 8);
  if (m.what == kind::allocate)
    m.alignment = get<std::uint64_t>(p + 16);
  const bool points = m.what == kind::wake || m.what == kind::woken ||
                      (m.what == kind::allocated && m.status == result::ok);
  return !points || m.value < max_segment_bytes;
}

} // namespace asio_rdma::detail
