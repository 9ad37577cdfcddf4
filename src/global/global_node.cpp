// SPDX-License-Identifier: BSL-1.0
#include "global/global_node.hpp"

#include "core/random_bits.hpp"
#include "global/global_memory_impl.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <map>
#include <span>

namespace asio_rdma::detail {
namespace {

using kind = global_message::kind;
using result = global_message::result;

} // namespace

global_node::global_node(const memory_pool& pool, node_id id)
    : pool_(pool), id_(id), incarnation_(random_bits<std::uint64_t>()) {}

global_node::~global_node() = default;

// Each segment has a pool of its own, so its key covers nothing else.
error_code global_node::host(std::uint64_t bytes, segment_id& given) {
  if (bytes <= reserved || bytes > max_segment_bytes)
    return asio::error::invalid_argument;
  const std::lock_guard guard(mutex_);
  if (introduced_)
    return asio::error::already_started;
  if (segments_.size() == global_message::max_segments)
    return asio::error::no_buffer_space;
  const protection_domain& pd = pool_.get_protection_domain();
  memory_pool_options o;
  o.rights = access::local_write | access::remote_read | access::remote_write;
  if (pd.get_device().has_atomics())
    o.rights = o.rights | access::remote_atomic;
  const std::size_t whole = std::max<std::size_t>(bytes, largest_small + 1); // whole pages
  o.first_arena = o.limit = round_up(whole, whole < huge_page ? page_bytes : huge_page);
  o.zeroed = true;
  error_code ec;
  const registered_buffer memory = memory_pool(pd, o).allocate(whole, page_bytes, ec);
  if (ec)
    return ec;
  given = static_cast<segment_id>(segments_.size());
  segments_.push_back({memory.first(bytes), segment_allocator(reserved, bytes)});
  published_[given].store(&segments_.back(), std::memory_order_release);
  return {};
}

bool global_node::hosts() const {
  const std::lock_guard guard(mutex_);
  return !segments_.empty();
}

global_message global_node::introduction(kind what) {
  assert(what == kind::join || what == kind::welcome);
  const std::lock_guard guard(mutex_);
  introduced_ = true;
  global_message m;
  m.what = what;
  m.node = id_;
  m.incarnation = incarnation_;
  m.atomics = pool_.get_protection_domain().get_device().attributes().atomic_cap;
  for (const segment& s : segments_)
    m.segments.push_back({reinterpret_cast<std::uintptr_t>(s.memory.data()), s.memory.size(),
                          s.memory.region()->rkey()});
  return m;
}

global_message global_node::serve(const global_message& request) {
  unzeroed block;
  global_message answer = serve(request, block);
  while (block.bytes != 0 && !zero_some(block))
    continue;
  return answer;
}

global_message global_node::serve(const global_message& request, unzeroed& block) {
  global_message answer;
  answer.what = request.what == kind::free ? kind::freed : kind::allocated;
  answer.id = request.id;
  answer.segment = request.segment;
  answer.status = result::invalid;
  const bool locks = request.what == kind::descriptors;
  if (locks && request.value > global_message::max_descriptors)
    return answer;
  const std::uint64_t bytes = request.value * (locks ? sizeof(alock_descriptor) : 1);
  const std::uint64_t alignment = locks ? alignof(alock_descriptor) : request.alignment;
  void* memory = nullptr;
  {
    const std::lock_guard guard(mutex_);
    if (request.segment >= segments_.size())
      return answer;
    segment& s = segments_[request.segment];
    if (request.what == kind::free) {
      answer.status = s.space.free(request.value) ? result::ok : result::invalid;
    } else if (bytes != 0 && std::has_single_bit(alignment) &&
               alignment <= segment_allocator::max_alignment) {
      const auto at = s.space.allocate(bytes, alignment);
      answer.status = at ? result::ok : result::no_memory;
      answer.value = at.value_or(0);
      const bool later = at && !locks && bytes > most_zeroed;
      if (at && (locks || later))
        s.space.keep(*at);
      if (later)
        block = {request.segment, *at, 0, bytes};
      else if (at)
        memory = static_cast<std::byte*>(s.memory.data()) + *at;
    }
  }
  if (memory != nullptr) {
    std::memset(memory, 0, bytes);
    zeroed_.fetch_add(1, std::memory_order_release);
  }
  return answer;
}

bool global_node::zero_some(unzeroed& block) noexcept {
  segment& s = *published_[block.segment].load(std::memory_order_acquire);
  const std::uint64_t bytes = std::min<std::uint64_t>(most_zeroed, block.bytes - block.done);
  std::memset(static_cast<std::byte*>(s.memory.data()) + block.begin + block.done, 0, bytes);
  block.done += bytes;
  if (block.done != block.bytes)
    return false;
  zeroed_.fetch_add(1, std::memory_order_release);
  const std::lock_guard guard(mutex_);
  s.space.keep(block.begin, false);
  return true;
}

void global_node::mark_dead(segment_id where, std::uint64_t offset,
                            std::uint64_t count) const noexcept {
  void* const first = local(remote_word(id_, where, offset), count * sizeof(alock_descriptor),
                            alignof(alock_descriptor));
  if (first != nullptr)
    for (alock_descriptor& d : std::span(static_cast<alock_descriptor*>(first), count))
      d.dead.store(1);
}

std::shared_ptr<global_memory_impl>
global_node::share(std::size_t most,
                   const std::function<std::shared_ptr<global_memory_impl>(error_code&)>& make,
                   error_code& ec) {
  const std::lock_guard guard(sharing_mutex_);
  sharing_.reserve(sharing_.size() + 1);
  std::multimap<std::size_t, std::shared_ptr<global_memory_impl>> there; // by user count
  for (const auto& weak : sharing_)
    if (auto one = weak.lock(); one && one->users() != 0)
      there.emplace(one->users(), std::move(one));
  if (there.size() >= most)
    for (const auto& [users, one] : there)
      if (one->add_user())
        return one;
  sharing_.clear();
  for (const auto& [users, one] : there)
    sharing_.push_back(one);
  auto made = make(ec);
  if (made)
    sharing_.push_back(made);
  return made;
}

void* global_node::local(remote_word p, std::uint64_t bytes,
                         std::uint64_t alignment) const noexcept {
  if (p.node() != id_)
    return nullptr;
  // A peer that passed on the address got it through the device, which does not order memory
  // accesses between CPUs. Acquiring `zeroed_` does.
  static_cast<void>(zeroed_.load(std::memory_order_acquire));
  assert(alignment != 0);
  const segment* const s = published_[p.segment()].load(std::memory_order_acquire);
  if (s == nullptr || bytes > s->memory.size() || p.offset() > s->memory.size() - bytes ||
      p.offset() % alignment != 0)
    return nullptr;
  return static_cast<std::byte*>(s->memory.data()) + p.offset();
}

} // namespace asio_rdma::detail
