// SPDX-License-Identifier: BSL-1.0
#include "memory/memory_pool_impl.hpp"

#include <asio_rdma/detail/core/poison.hpp>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

// Below the range of an extent map.
constexpr std::size_t most_bytes = std::size_t(1) << 43;

// The registry that `find_blocks` searches.
struct all_pools {
  std::mutex mutex;
  std::vector<memory_pool_impl*> pools;

  // Never destroyed: a pool may be destroyed last.
  static all_pools& of_process() noexcept {
    alignas(all_pools) static std::byte place[sizeof(all_pools)];
    static all_pools& all = *::new (static_cast<void*>(place)) all_pools;
    return all;
  }
};

memory_pool_options in_pages(memory_pool_options o) {
  o.first_arena = round_up(std::clamp(o.first_arena, page_bytes, most_bytes), page_bytes);
  o.limit = std::min(o.limit, most_bytes) / page_bytes * page_bytes;
  return o;
}

} // namespace

void intrusive_ptr_add_ref(memory_pool_impl* p) noexcept {
  p->references_.fetch_add(1, std::memory_order_relaxed);
}

void intrusive_ptr_release(memory_pool_impl* p) noexcept {
  if (p->references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
    delete p;
}

memory_pool_impl::memory_pool_impl(const memory_pool_options& options, arena_maker maker,
                                   memory_pool whole)
    : options_(in_pages(options)),
      whole_(std::move(whole)),
      largest_small_(is_part() ? largest_small / 4 : largest_small), // one slab is 64 KiB then
      maker_(std::move(maker)) {
  all_pools& all = all_pools::of_process();
  const std::lock_guard lock(all.mutex);
  all.pools.push_back(this);
}

// No block is in use any more.
memory_pool_impl::~memory_pool_impl() {
  {
    all_pools& all = all_pools::of_process();
    const std::lock_guard lock(all.mutex);
    std::erase(all.pools, this);
  }
  assert(large_ == nullptr && large_blocks_ == 0);
  for (size_class& c : classes_) {
    assert(c.full.empty() && c.blocks_used == 0);
    c.with_free.clear_and_dispose([](slab* s) { delete s; });
  }
  while (spare_ != nullptr)
    delete std::exchange(spare_, spare_->next);
  for (const auto& a : arenas_)
    unpoison(a->memory->data, a->memory->size);
}

memory_block* memory_pool_impl::allocate(std::size_t bytes, std::size_t alignment,
                                         error_code& ec) noexcept {
  assert(bytes != 0);
  ec.clear();
  if (!std::has_single_bit(alignment) || alignment > page_bytes) [[unlikely]] {
    ec = asio::error::invalid_argument;
    return nullptr;
  }
  if (bytes > options_.limit) [[unlikely]] {
    ec = error::pool_limit;
    return nullptr;
  }
  try {
    memory_block* block = nullptr;
    if (bytes <= largest_small_) [[likely]] {
      const std::size_t index =
          alignment <= cache_line ? class_of(bytes) : class_of(bytes, alignment);
      block = allocate_small(index, bytes, ec);
    } else {
      block = allocate_pages(bytes, ec);
    }
    return block != nullptr ? hand_out(block, bytes) : nullptr;
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
    return nullptr;
  }
}

memory_block* memory_pool_impl::hand_out(memory_block* block, std::size_t bytes) noexcept {
  intrusive_ptr_add_ref(this);
  block->references.store(1, std::memory_order_relaxed);
  unpoison(block->data, bytes);
  if (options_.zeroed)
    std::memset(block->data, 0, bytes);
  return block;
}

// Small blocks.

memory_block* memory_pool_impl::take(slab& from, std::size_t bytes) noexcept {
  assert(from.of->mutex.is_locked() && from.free != nullptr);
  memory_block* const block = from.free;
  from.free = block->next;
  ++from.used;
  block->size = bytes;
  ++from.of->blocks_used;
  from.of->bytes_used += bytes;
  return block;
}

memory_block* memory_pool_impl::allocate_small(std::size_t index, std::size_t bytes,
                                               error_code& ec) {
  size_class& c = classes_[index];
  {
    const std::lock_guard lock(c.mutex);
    if (!c.with_free.empty()) [[likely]] {
      slab& s = c.with_free.front();
      memory_block* const block = take(s, bytes);
      if (s.free == nullptr) {
        c.with_free.pop_front();
        c.full.push_front(s);
      }
      return block;
    }
  }
  std::unique_ptr<slab> made = make_slab(index, ec);
  if (made == nullptr) {
    if (ec != error::pool_limit)
      return nullptr;
    // The remaining memory may be too little for a slab but enough for this block.
    ec.clear();
    return allocate_pages(bytes, ec);
  }
  const std::lock_guard lock(c.mutex);
  slab& s = *made.release();
  memory_block* const block = take(s, bytes);
  (s.free != nullptr ? c.with_free : c.full).push_front(s);
  return block;
}

void memory_pool_impl::return_small(memory_block* block) noexcept {
  slab& s = *static_cast<slab*>(block->owner);
  memory_pool_impl* const self = s.pool;
  size_class& c = *s.of;
  std::unique_ptr<slab> unused;
  poison(block->data, block->size);
  {
    const std::lock_guard lock(c.mutex);
    assert(s.used != 0 && c.blocks_used != 0 && c.bytes_used >= block->size);
    --c.blocks_used;
    c.bytes_used -= block->size;
    if (s.free == nullptr) [[unlikely]] {
      c.full.erase(c.full.iterator_to(s));
      c.with_free.push_front(s);
    }
    block->next = s.free;
    s.free = block;
    --s.used;
    if (s.used == 0 && self->is_part() && &c.with_free.front() != &c.with_free.back())
        [[unlikely]] {
      c.with_free.erase(c.with_free.iterator_to(s));
      unused.reset(&s);
    }
  }
  if (unused) [[unlikely]]
    self->return_run(std::exchange(unused, nullptr)->data);
  intrusive_ptr_release(self);
}

std::unique_ptr<memory_pool_impl::slab> memory_pool_impl::make_slab(std::size_t index,
                                                                    error_code& ec) {
  const std::size_t bytes = class_bytes(index);
  const std::size_t count = slab_bytes(index) / bytes;
  auto made = std::make_unique<slab>();
  made->blocks = std::make_unique<memory_block[]>(count);
  const run r = take_run(slab_bytes(index), ec);
  if (r.arena == nullptr)
    return nullptr;
  made->pool = this;
  made->of = &classes_[index];
  made->data = r.data;
  for (std::size_t i = count; i-- != 0;) {
    memory_block& b = made->blocks[i];
    b.lkey = r.arena->lkey;
    b.region = r.arena->region;
    b.data = r.data + i * bytes;
    b.dispose = &return_small;
    b.owner = made.get();
    b.next = std::exchange(made->free, &b);
  }
  return made;
}

bool memory_pool_impl::reclaim_slabs() noexcept {
  assert(growth_.held());
  bool any = false;
  for (size_class& c : classes_) {
    slab_list unused;
    {
      const std::lock_guard lock(c.mutex);
      for (auto i = c.with_free.begin(); i != c.with_free.end();) {
        slab& s = *i++;
        if (s.used == 0) {
          c.with_free.erase(c.with_free.iterator_to(s));
          unused.push_back(s);
        }
      }
    }
    any |= !unused.empty();
    unused.clear_and_dispose([this](slab* s) {
      return_run(s->data);
      delete s;
    });
  }
  return any;
}

// Large blocks.

memory_block* memory_pool_impl::allocate_pages(std::size_t bytes, error_code& ec) {
  const run r = take_run(round_up(bytes, page_bytes), ec);
  return r.arena != nullptr ? make_block(bytes, r) : nullptr;
}

memory_block* memory_pool_impl::allocate_present(std::size_t bytes) noexcept {
  assert(bytes > largest_small);
  if (options_.zeroed || bytes > options_.limit) // clearing it takes long, too
    return nullptr;
  try {
    const run r = take_present_run(round_up(bytes, page_bytes));
    return r.arena != nullptr ? hand_out(make_block(bytes, r), bytes) : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

memory_block* memory_pool_impl::make_block(std::size_t bytes, const run& r) {
  memory_block* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (spare_ != nullptr)
      block = std::exchange(spare_, spare_->next);
  }
  if (block == nullptr)
    block = new (std::nothrow) memory_block;
  if (block == nullptr) {
    return_run(r.data);
    throw std::bad_alloc();
  }
  const std::lock_guard lock(mutex_);
  block->lkey = r.arena->lkey;
  block->region = r.arena->region;
  block->data = r.data;
  block->size = bytes;
  block->dispose = &return_pages;
  block->owner = this;
  block->previous = nullptr;
  block->next = large_;
  if (large_ != nullptr)
    large_->previous = block;
  large_ = block;
  ++large_blocks_;
  large_bytes_ += bytes;
  return block;
}

void memory_pool_impl::return_pages(memory_block* block) noexcept {
  auto* const self = static_cast<memory_pool_impl*>(block->owner);
  poison(block->data, block->size);
  self->return_run(block->data);
  {
    const std::lock_guard lock(self->mutex_);
    assert(self->large_blocks_ != 0 && self->large_bytes_ >= block->size);
    --self->large_blocks_;
    self->large_bytes_ -= block->size;
    (block->previous != nullptr ? block->previous->next : self->large_) = block->next;
    if (block->next != nullptr)
      block->next->previous = block->previous;
    block->next = std::exchange(self->spare_, block);
  }
  intrusive_ptr_release(self);
}

bool memory_pool_impl::is_within(const char* address, const char* data,
                                 std::size_t bytes) noexcept {
  return !std::less<>()(address, data) && std::less<>()(address, data + bytes);
}

memory_block_ptr memory_pool_impl::small_block_of(const char* address) noexcept {
  for (std::size_t index = 0; index < size_classes; ++index) {
    size_class& c = classes_[index];
    const std::lock_guard lock(c.mutex);
    for (slab_list* slabs : {&c.with_free, &c.full})
      for (slab& s : *slabs) {
        if (!is_within(address, s.data, slab_bytes(index)))
          continue;
        memory_block* const block =
            &s.blocks[static_cast<std::size_t>(address - s.data) / class_bytes(index)];
        for (const memory_block* b = s.free; b != nullptr; b = b->next)
          if (b == block)
            return nullptr;
        return block;
      }
  }
  return nullptr;
}

memory_block_ptr memory_pool_impl::block_of(const char* address) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const pages* const a = arena_of(address);
    if (a == nullptr || !is_within(address, a->memory->data, a->memory->size))
      return nullptr;
    for (memory_block* b = large_; b != nullptr; b = b->next)
      if (is_within(address, b->data, b->size))
        return b;
  }
  return small_block_of(address);
}

void memory_pool_impl::find_blocks(std::span<const ibv_sge> elements, kept_blocks& to) noexcept {
  all_pools& all = all_pools::of_process();
  const std::lock_guard lock(all.mutex);
  for (const ibv_sge& e : elements)
    for (memory_pool_impl* pool : all.pools)
      if (auto block = pool->block_of(reinterpret_cast<const char*>(e.addr)))
        to.add(std::move(block));
}

memory_pool_statistics memory_pool_impl::statistics() const noexcept {
  memory_pool_statistics s;
  for (const size_class& c : classes_) {
    const std::lock_guard lock(c.mutex);
    s.blocks_in_use += c.blocks_used;
    s.bytes_in_use += c.bytes_used;
  }
  const std::lock_guard lock(mutex_);
  s.blocks_in_use += large_blocks_;
  s.bytes_in_use += large_bytes_ + to_come_;
  s.arenas = arenas_.size();
  s.bytes_registered = registered_ + of_parts_;
  s.bytes_in_use += of_parts_;
  for (const auto& a : arenas_)
    s.bytes_huge += a->memory->huge ? a->memory->size : 0;
  return s;
}

} // namespace asio_rdma::detail
