// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/registered_buffer.hpp>

#include "verbs/withheld.hpp"

#include <boost/system/errc.hpp>

#include <cassert>
#include <cstring>

namespace asio_rdma {
namespace {

struct user_memory {
  explicit user_memory(memory_region r, std::shared_ptr<void> m)
      : memory(std::move(m)), region(std::move(r)) {}

  static void dispose(detail::memory_block* block) noexcept {
    const std::unique_ptr<user_memory> self(static_cast<user_memory*>(block->owner));
    error_code ec;
    self->region.close(ec); // before the memory is released
    if (ec)
      detail::withhold_key(std::move(self->region), std::move(self->memory));
  }

  std::shared_ptr<void> memory;
  memory_region region;
  detail::memory_block block;
};

} // namespace

registered_buffer::registered_buffer(memory_region region, std::shared_ptr<void> memory) {
  auto* owner = new user_memory(std::move(region), std::move(memory));
  detail::memory_block& block = owner->block;
  block.lkey = owner->region.lkey();
  block.data = static_cast<char*>(owner->region.data());
  block.size = owner->region.size();
  block.region = &owner->region;
  block.dispose = &user_memory::dispose;
  block.owner = owner;
  block.of_user = true;
  block_ = &block;
  view_ = owner->region.buffer();
}

registered_buffer registered_buffer::slice(std::size_t offset, std::size_t bytes,
                                           error_code& ec) const {
  ec.clear();
  registered_buffer result;
  if (offset > size() || bytes > size() - offset) {
    ec = make_error_code(boost::system::errc::result_out_of_range);
    return result;
  }
  result.block_ = block_;
  result.view_ = (view_ + offset).first(bytes);
  return result;
}

registered_buffer registered_buffer::slice(std::size_t offset, std::size_t bytes) const {
  error_code ec;
  registered_buffer result = slice(offset, bytes, ec);
  detail::throw_if(ec, "registered_buffer::slice");
  return result;
}

void registered_buffer::zero() const noexcept {
  assert(!is_device_only());
  if (!empty())
    std::memset(data(), 0, size());
}

} // namespace asio_rdma
