// SPDX-License-Identifier: BSL-1.0
// Runs of pages, and the arenas that they are cut from: growth, trimming, and the limit.
#include "memory/memory_pool_impl.hpp"

#include <asio_rdma/detail/core/poison.hpp>

#include "core/logging.hpp"

#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>
#include <new>
#include <utility>

namespace asio_rdma::detail {

namespace {

// Registering an arena makes its pages present, which takes a millisecond for each MiB, or more in
// a virtual machine, and other threads of the pool may wait meanwhile. So arenas are not larger
// than this, or than a part of all: their number grows with the logarithm of the size.
constexpr std::size_t largest_step = std::size_t(8) << 20;
constexpr std::size_t steps = 32;

constexpr std::size_t all_unused = std::numeric_limits<std::size_t>::max();

} // namespace

memory_pool_impl::pages::pages(share s, std::unique_ptr<memory_arena> m)
    : of_limit(std::move(s)),
      memory(std::move(m)),
      taken(static_cast<std::uint32_t>(memory->size / page_bytes)) {
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
    std::uint64_t before = 0;
    {
      const std::lock_guard growing(growth_);
      before = deregistrations();
      // Another thread may have grown the pool in the meantime.
      run r = take_present_run(bytes);
      if (r.arena == nullptr && reclaim_slabs())
        r = take_present_run(bytes);
      if (r.arena != nullptr)
        return r;
      if (bytes <= largest_step && !grow(bytes, ec) && ec != error::pool_limit)
        return {};
    }
    if (bytes > largest_step)
      return take_own_arena(bytes, ec);
    if (ec && !wait_for_deregistered(before))
      return {};
    ec.clear();
  }
}

std::uint64_t memory_pool_impl::deregistrations() const noexcept {
  const std::lock_guard lock(mutex_);
  return deregistrations_;
}

// Returns false if none has ended since there were so many, and none is under way.
bool memory_pool_impl::wait_for_deregistered(std::uint64_t before) noexcept {
  std::unique_lock lock(mutex_);
  deregistered_.wait(lock, [this] { return leaving_ == 0; });
  return deregistrations_ != before;
}

// Counts a new arena of at least so many bytes, all of which will be in use. Returns its size, or
// 0.
std::size_t memory_pool_impl::count_own_arena(std::size_t bytes) noexcept {
  const std::lock_guard growing(growth_);
  const std::lock_guard lock(mutex_);
  const std::size_t size = std::min(is_part() ? bytes : round_up(bytes, huge_page), unregistered());
  if (size < bytes)
    return 0;
  registered_ += size;
  to_come_ += bytes;
  return size;
}

// The whole run of a new arena. Other threads allocate and grow the pool while it is registered.
// If the limit leaves no room for it, unused arenas are released: they are too small for it.
memory_pool_impl::run memory_pool_impl::take_own_arena(std::size_t bytes, error_code& ec) {
  std::size_t size = 0;
  for (bool released = true; (size = count_own_arena(bytes)) == 0;) {
    if (!released) {
      ec = error::pool_limit;
      const std::lock_guard growing(growth_);
      log_lack(bytes, statistics().bytes_registered, ec);
      return {};
    }
    released = release_unused(bytes) != 0;
    if (const run r = take_present_run(bytes); r.arena != nullptr)
      return r;
  }
  run result;
  std::unique_ptr<pages> added; // destroyed after the mutex is unlocked
  try {
    share of_limit(whole_.impl().get(), size);
    if (!of_limit.good()) {
      ec = error::pool_limit;
    } else if (auto made = maker_(size, ec)) {
      added = std::make_unique<pages>(std::move(of_limit), std::move(made));
      const std::uint32_t first =
          added->taken.allocate(static_cast<std::uint32_t>(bytes / page_bytes));
      assert(first == 0);
      result = {added->memory.get(), added->memory->data + std::size_t(first) * page_bytes};
    }
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  const std::lock_guard growing(growth_);
  std::unique_lock lock(mutex_);
  to_come_ -= bytes;
  try {
    if (result.arena != nullptr) {
      insert(added);
      return result;
    }
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  const std::size_t registered = registered_ -= size;
  lock.unlock();
  log_lack(bytes, registered, ec);
  return {};
}

void memory_pool_impl::insert(std::unique_ptr<pages>& added) {
  assert(mutex_.is_locked());
  const auto place = std::find_if(arenas_.begin(), arenas_.end(), [&added](const auto& a) {
    return std::less<>()(added->memory->data, a->memory->data);
  });
  arenas_.insert(place, std::move(added));
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
  std::unique_ptr<pages> unused;
  {
    const std::lock_guard lock(mutex_);
    pages& a = const_cast<pages&>(*arena_of(data));
    assert(is_within(data, a.memory->data, a.memory->size));
    a.taken.release(
        static_cast<std::uint32_t>(static_cast<std::size_t>(data - a.memory->data) / page_bytes));
    if (is_part() && a.taken.pages_used() == 0 && whole_.impl()->is_pressed())
      unused = remove(std::find_if(arenas_.begin(), arenas_.end(),
                                   [&a](const auto& each) { return each.get() == &a; }));
  }
  if (unused != nullptr)
    deregister(std::move(unused));
}

std::unique_ptr<memory_pool_impl::pages> memory_pool_impl::remove(arenas::iterator which) noexcept {
  assert(mutex_.is_locked());
  std::unique_ptr<pages> result = std::move(*which);
  arenas_.erase(which);
  leaving_ += result->memory->size;
  unpoison(result->memory->data, result->memory->size);
  return result;
}

// That takes long, so other threads use the pool meanwhile. The memory counts until the end.
std::size_t memory_pool_impl::deregister(std::unique_ptr<pages> removed) noexcept {
  const std::size_t size = removed->memory->size;
  removed.reset();
  {
    const std::lock_guard lock(mutex_);
    registered_ -= size;
    leaving_ -= size;
    ++deregistrations_;
  }
  deregistered_.notify_all();
  return size;
}

// --- The limit -------------------------------------------------------------------------------

// The bytes that it leaves.
std::size_t memory_pool_impl::unregistered() const noexcept {
  assert(mutex_.is_locked());
  return options_.limit - registered_ - of_parts_;
}

bool memory_pool_impl::take_share(std::size_t bytes) noexcept {
  const auto take = [&] {
    const std::lock_guard growing(growth_);
    const std::lock_guard lock(mutex_);
    if (bytes > unregistered())
      return false;
    of_parts_ += bytes;
    return true;
  };
  for (bool released = true; !take();) {
    if (!released)
      return false;
    released = release_unused(bytes) != 0;
  }
  return true;
}

// Above this, memory that one pool keeps without use would limit what the others do: receives grow
// up to half of the limit.
bool memory_pool_impl::is_pressed() const noexcept {
  const std::lock_guard lock(mutex_);
  return registered_ + of_parts_ > options_.limit / 4;
}

void memory_pool_impl::return_share(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  assert(of_parts_ >= bytes);
  of_parts_ -= bytes;
}

// --- Growth ----------------------------------------------------------------------------------

// Bytes that the next arena has at least. No other pool can use the memory of a part.
std::size_t memory_pool_impl::next_arena(std::size_t registered) const noexcept {
  constexpr std::size_t megabyte = std::size_t(1) << 20;
  if (is_part())
    return std::min(registered / 4 / page_bytes * page_bytes, megabyte);
  const std::size_t step = std::min(registered, std::max(largest_step, registered / steps));
  return std::max(step, options_.first_arena);
}

// The bytes of an arena, if the limit leaves so much room.
std::size_t memory_pool_impl::arena_size(std::size_t bytes, std::size_t room) const noexcept {
  if (bytes >= huge_page && !is_part())
    bytes = round_up(bytes, huge_page);
  return std::min(bytes, room);
}

std::size_t memory_pool_impl::bytes_to_prepare(std::size_t bytes) const noexcept {
  const memory_pool_impl& limited = counting();
  const std::size_t room = [&limited] {
    const std::lock_guard lock(limited.mutex_);
    return limited.unregistered();
  }();
  const auto count = static_cast<std::uint32_t>(round_up(bytes, page_bytes) / page_bytes);
  const std::lock_guard lock(mutex_);
  if (std::any_of(arenas_.begin(), arenas_.end(),
                  [count](const auto& a) { return a->taken.has(count); }))
    return bytes;
  if (bytes > room)
    return std::numeric_limits<std::size_t>::max();
  return arena_size(bytes > largest_step ? bytes : std::max(bytes, next_arena(registered_)), room);
}

std::unique_ptr<memory_pool_impl::pages> memory_pool_impl::make_arena(std::size_t registered,
                                                                      std::size_t room,
                                                                      std::size_t bytes,
                                                                      error_code& ec) const {
  assert(bytes % page_bytes == 0);
  if (bytes > room) {
    ec = error::pool_limit;
    return nullptr;
  }
  std::size_t wanted = arena_size(std::max(bytes, next_arena(registered)), room);
  for (;;) {
    ec.clear();
    share of_limit(whole_.impl().get(), wanted);
    if (!of_limit.good())
      ec = error::pool_limit;
    else if (auto made = maker_(wanted, ec))
      return std::make_unique<pages>(std::move(of_limit), std::move(made));
    if (wanted == bytes)
      return nullptr;
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
            options_.limit, bytes);
}

// Called under `growth_`, so `of_parts_` does not grow meanwhile. Only `take_own_arena` may add an
// arena, which it has counted.
bool memory_pool_impl::grow(std::size_t bytes, error_code& ec) {
  assert(growth_.held());
  std::size_t registered = 0, room = 0;
  {
    const std::lock_guard lock(mutex_);
    registered = registered_;
    room = unregistered();
    arenas_.reserve(arenas_.size() + 1);
  }
  auto added = make_arena(registered, room, bytes, ec);
  if (added == nullptr) {
    log_lack(bytes, registered, ec);
    return false;
  }
  const std::lock_guard lock(mutex_);
  const std::size_t size = added->memory->size;
  insert(added);
  registered_ += size;
  return true;
}

void memory_pool_impl::reserve(std::size_t bytes, error_code& ec) noexcept {
  ec.clear();
  try {
    const std::lock_guard growing(growth_);
    const std::size_t registered = [this] {
      const std::lock_guard lock(mutex_);
      return registered_;
    }();
    if (bytes > options_.limit)
      ec = error::pool_limit;
    else if (bytes > registered)
      grow(round_up(bytes - registered, page_bytes), ec);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
}

std::size_t memory_pool_impl::trim() noexcept { return release_unused(all_unused); }

// Releases until the limit has room for so many bytes. A thread that comes meanwhile waits, as that
// may be enough for it, too.
std::size_t memory_pool_impl::release_unused(std::size_t wanted) noexcept {
  const std::lock_guard releasing(releasing_);
  {
    const std::lock_guard growing(growth_);
    reclaim_slabs();
  }
  std::size_t bytes = 0;
  for (;;) {
    std::unique_ptr<pages> unused;
    {
      const std::lock_guard lock(mutex_);
      if (wanted <= unregistered())
        return bytes;
      const auto i = std::find_if(arenas_.begin(), arenas_.end(),
                                  [](const auto& a) { return a->taken.pages_used() == 0; });
      if (i == arenas_.end())
        return bytes;
      unused = remove(i);
    }
    bytes += deregister(std::move(unused));
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
