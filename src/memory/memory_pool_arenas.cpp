// SPDX-License-Identifier: BSL-1.0
// Runs of pages, and the arenas that they are cut from: growth and trimming.
#include "memory/memory_pool_impl.hpp"

#include <asio_rdma/detail/core/poison.hpp>

#include "core/logging.hpp"

#include <algorithm>
#include <cassert>
#include <functional>
#include <new>
#include <utility>

namespace asio_rdma::detail {

memory_pool_impl::pages::pages(std::unique_ptr<memory_arena> m)
    : memory(std::move(m)), taken(static_cast<std::uint32_t>(memory->size / page_bytes)) {
  assert(memory->size % page_bytes == 0);
  poison(memory->data, memory->size);
}

memory_pool_impl::run memory_pool_impl::take_present_run(std::size_t bytes) noexcept {
  const auto count = static_cast<std::uint32_t>(bytes / page_bytes);
  const std::lock_guard lock(mutex_);
  for (const auto& a : arenas_)
    if (const std::uint32_t first = a->taken.allocate(count); first != extent_map::none)
      return {a->memory.get(), a->memory->data + std::size_t(first) * page_bytes};
  return {};
}

memory_pool_impl::run memory_pool_impl::take_run(std::size_t bytes, error_code& ec) {
  for (;;) {
    if (const run r = take_present_run(bytes); r.arena != nullptr)
      return r;
    const std::lock_guard growing(growth_);
    // Another thread may have grown the pool in the meantime.
    run r = take_present_run(bytes);
    if (r.arena == nullptr && reclaim_slabs())
      r = take_present_run(bytes);
    if (r.arena != nullptr || !grow(bytes, ec))
      return r;
  }
}

const memory_pool_impl::pages* memory_pool_impl::arena_of(const void* address) const noexcept {
  assert(mutex_.is_locked());
  const auto* const at = static_cast<const char*>(address);
  const auto behind =
      std::upper_bound(arenas_.begin(), arenas_.end(), at, [](const char* p, const auto& a) {
        return std::less<>()(p, a->memory->data);
      });
  return behind == arenas_.begin() ? nullptr : std::prev(behind)->get();
}

void memory_pool_impl::return_run(char* data) noexcept {
  const std::lock_guard lock(mutex_);
  pages& a = const_cast<pages&>(*arena_of(data));
  assert(is_within(data, a.memory->data, a.memory->size));
  a.taken.release(
      static_cast<std::uint32_t>(static_cast<std::size_t>(data - a.memory->data) / page_bytes));
}

std::unique_ptr<memory_arena>
memory_pool_impl::make_arena(std::size_t registered, std::size_t bytes, error_code& ec) const {
  assert(bytes % page_bytes == 0 && registered <= limit_);
  const std::size_t room = limit_ - registered;
  if (bytes > room) {
    ec = error::pool_limit;
    return nullptr;
  }
  std::size_t wanted = std::max(bytes, std::max(registered, first_arena_));
  if (wanted >= huge_page)
    wanted = round_up(wanted, huge_page);
  wanted = std::min(wanted, room);
  for (;;) {
    ec.clear();
    auto made = maker_(wanted, ec);
    if (made != nullptr || wanted == bytes)
      return made;
    // A smaller arena may succeed.
    wanted = std::max(bytes, round_up(wanted / 4, page_bytes));
  }
}

// A link that lacks memory for its receives asks again and again, so one event a second is logged.
void memory_pool_impl::log_lack(std::size_t bytes, std::size_t registered,
                                const error_code& why) noexcept {
  assert(growth_.held());
  if (!logs(log_severity::warning)) [[likely]]
    return;
  const auto now = std::chrono::steady_clock::now();
  if (logged_at_ != decltype(now)() && now - logged_at_ < std::chrono::seconds(1))
    return;
  logged_at_ = now;
  write_log({.severity = log_severity::warning, .event = log_event::memory, .error = why},
            "a memory pool has registered %zu of at most %zu bytes and cannot add %zu", registered,
            limit_, bytes);
}

// Called under `growth_`, so no other thread changes `registered_`.
bool memory_pool_impl::grow(std::size_t bytes, error_code& ec) {
  assert(growth_.held());
  std::size_t registered = 0;
  {
    const std::lock_guard lock(mutex_);
    registered = registered_;
    arenas_.reserve(arenas_.size() + 1);
  }
  auto made = make_arena(registered, bytes, ec);
  if (made == nullptr) {
    log_lack(bytes, registered, ec);
    return false;
  }
  auto added = std::make_unique<pages>(std::move(made));
  const std::lock_guard lock(mutex_);
  registered_ += added->memory->size;
  const auto place = std::find_if(arenas_.begin(), arenas_.end(), [&added](const auto& a) {
    return std::less<>()(added->memory->data, a->memory->data);
  });
  arenas_.insert(place, std::move(added));
  return true;
}

void memory_pool_impl::reserve(std::size_t bytes, error_code& ec) noexcept {
  ec.clear();
  try {
    const std::lock_guard growing(growth_);
    const std::size_t registered = statistics().bytes_registered;
    if (bytes > limit_)
      ec = error::pool_limit;
    else if (bytes > registered)
      grow(round_up(bytes - registered, page_bytes), ec);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
}

std::size_t memory_pool_impl::trim() noexcept {
  const std::lock_guard growing(growth_);
  reclaim_slabs();
  std::size_t bytes = 0;
  for (;;) {
    std::unique_ptr<pages> unused; // deregistered outside the lock
    const std::lock_guard lock(mutex_);
    const auto i = std::find_if(arenas_.begin(), arenas_.end(),
                                [](const auto& a) { return a->taken.pages_used() == 0; });
    if (i == arenas_.end())
      return bytes;
    unused = std::move(*i);
    arenas_.erase(i);
    bytes += unused->memory->size;
    registered_ -= unused->memory->size;
    unpoison(unused->memory->data, unused->memory->size);
  }
}

// The arena that has all of the bytes.
const memory_arena* memory_pool_impl::arena_with(const void* data,
                                                 std::size_t bytes) const noexcept {
  const pages* const a = arena_of(data);
  if (a == nullptr)
    return nullptr;
  const memory_arena& m = *a->memory;
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(data) - m.data);
  return offset <= m.size && bytes <= m.size - offset ? &m : nullptr;
}

std::optional<mutable_buffer> memory_pool_impl::find(const void* data,
                                                     std::size_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  const memory_arena* const m = arena_with(data, bytes);
  if (m == nullptr)
    return std::nullopt;
  return mutable_buffer(const_cast<void*>(data), bytes, m->lkey);
}

const memory_region* memory_pool_impl::find_bindable(const void* data,
                                                     std::size_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  const memory_arena* const m = arena_with(data, bytes);
  return m != nullptr && m->binds ? m->region : nullptr;
}

} // namespace asio_rdma::detail
