// SPDX-License-Identifier: BSL-1.0
#include "device/memory.hpp"

#include "device/limits.hpp"
#include "engine/of_process.hpp"
#include "engine/sanitizers.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace soft {
namespace {

// ibv_bind_mw(3)
constexpr unsigned window_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;

// [address, address + bytes) within [first, first + size), without overflow.
bool within(std::uint64_t address, std::uint64_t bytes, std::uint64_t first,
            std::uint64_t size) noexcept {
  return address >= first && bytes <= size && address - first <= size - bytes;
}

std::byte* at(const region& r, std::uint64_t address) noexcept {
  return r.memory + (address - r.first);
}

// The address that a peer names for the first byte of a window.
std::uint64_t base_of(const window& w) noexcept {
  return (w.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : w.first;
}

} // namespace

memory_table& memory_table::get() { return of_process<memory_table>(); }

std::uint32_t memory_table::take() {
  if (free_ != 0) {
    const std::uint32_t index = free_;
    free_ = slots_[index].next_free;
    ++slots_[index].tag;
    return index;
  }
  if (slots_.size() > limits::regions)
    return 0;
  slots_.emplace_back();
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

void memory_table::give_back(std::uint32_t index) {
  slots_[index].r = nullptr;
  slots_[index].w = nullptr;
  slots_[index].next_free = free_;
  free_ = index;
}

bool memory_table::add(region& r) {
  const std::uint32_t index = take();
  if (index == 0)
    return false;
  slots_[index].r = &r;
  r.lkey = r.rkey = index << 8 | slots_[index].tag;
  return true;
}

bool memory_table::add(window& w) {
  const std::uint32_t index = take();
  if (index == 0)
    return false;
  slots_[index].w = &w;
  w.key = w.rkey = index << 8 | slots_[index].tag;
  return true;
}

// A child after fork(2) may remove what its parent has made.
void memory_table::remove(region& r) {
  ++removals_;
  if (const slot* const s = find(r.lkey); s != nullptr && s->r == &r)
    give_back(r.lkey >> 8);
}

void memory_table::remove(window& w) {
  if (w.bound != nullptr)
    --w.bound->windows;
  if (const slot* const s = find(w.key); s != nullptr && s->w == &w)
    give_back(w.key >> 8);
}

void memory_table::end_removed() {
  const auto is_removed = [](const auto* o) {
    return o != nullptr && device_context::of(o->context).removed;
  };
  for (std::uint32_t i = 0; i != slots_.size(); ++i) {
    window* const w = slots_[i].w;
    if (is_removed(w) && w->bound != nullptr)
      --std::exchange(w->bound, nullptr)->windows;
    if (is_removed(w) || is_removed(slots_[i].r))
      give_back(i);
  }
  ++removals_;
}

const memory_table::slot* memory_table::find(std::uint32_t key) const {
  const std::uint32_t index = key >> 8;
  if (index == 0 || index >= slots_.size() || slots_[index].tag != (key & 0xff))
    return nullptr;
  return &slots_[index];
}

// The memory of an element, or nullptr.
std::byte* memory_table::local(const ibv_pd* pd, const ibv_sge& e, unsigned access) const {
  const slot* const s = find(e.lkey);
  if (s == nullptr || s->r == nullptr || s->r->pd != pd || (s->r->access & access) != access ||
      !within(e.addr, e.length, s->r->first, s->r->length))
    return nullptr;
  return at(*s->r, e.addr);
}

bool memory_table::resolve(const ibv_pd* pd, std::span<const ibv_sge> elements, unsigned access,
                           spans& to) const {
  for (const ibv_sge& e : elements) {
    if (e.length == 0) // its key may be any
      continue;
    std::byte* const data = local(pd, e, access);
    if (data == nullptr)
      return false;
    to.add(data, e.length);
  }
  return true;
}

bool memory_table::still_has(const ibv_pd* pd, const spans& memory, unsigned access,
                             std::uint64_t& as_of) const {
  if (as_of == removals_)
    return true;
  const auto is_registered = [&](const span& p) {
    const auto address = reinterpret_cast<std::uintptr_t>(p.data);
    return std::any_of(slots_.begin(), slots_.end(), [&](const slot& s) {
      return s.r != nullptr && s.r->pd == pd && (s.r->access & access) == access &&
             within(address, p.bytes, reinterpret_cast<std::uintptr_t>(s.r->memory), s.r->length);
    });
  };
  if (!std::all_of(memory.parts, memory.parts + memory.count, is_registered))
    return false;
  as_of = removals_;
  return true;
}

std::byte* memory_table::remote(const ibv_qp& responder, std::uint32_t key, std::uint64_t address,
                                std::uint64_t bytes, unsigned access, refusal& why) const {
  const auto refused = [&why](refusal r) {
    why = r;
    return nullptr;
  };
  const slot* const s = find(key);
  const window* const w = s == nullptr ? nullptr : s->w;
  if (s == nullptr || (s->r == nullptr && (w == nullptr || w->bound == nullptr)))
    return refused(refusal::unknown_key);
  if (s->r != nullptr) {
    const region& r = *s->r;
    if (r.pd != responder.pd)
      return refused(refusal::other_domain);
    if ((r.access & access) != access)
      return refused(refusal::no_right);
    if (!within(address, bytes, r.first, r.length))
      return refused(refusal::out_of_bounds);
    return at(r, address);
  }
  if (w->pd != responder.pd || (w->type == IBV_MW_TYPE_2 && w->qp_num != responder.qp_num))
    return refused(refusal::other_domain);
  if ((w->access & access) != access)
    return refused(refusal::no_right);
  if (!within(address, bytes, base_of(*w), w->bytes))
    return refused(refusal::out_of_bounds);
  return at(*w->bound, w->first + (address - base_of(*w)));
}

std::byte* memory_table::as_named(std::byte* byte) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(byte);
  for (const slot& s : slots_)
    if (s.r != nullptr && s.r->dma_buf.data() != nullptr &&
        within(address, 1, reinterpret_cast<std::uintptr_t>(s.r->memory), s.r->length))
      return reinterpret_cast<std::byte*>(s.r->first +
                                          static_cast<std::uint64_t>(byte - s.r->memory));
  return byte;
}

// InfiniBand specification, 10.6.7.2 and 11.2.2.2; rxe's checks are the same.
ibv_wc_status memory_table::bind(const ibv_qp& by, std::uint32_t key, const window_binding& to) {
  const std::uint32_t index = to.window >> 8; // its tag may have changed with each binding
  if (index >= slots_.size() || slots_[index].w == nullptr || slots_[index].w->pd != by.pd)
    return IBV_WC_MW_BIND_ERR;
  window& w = *slots_[index].w;
  if (w.type == IBV_MW_TYPE_2 && w.bound != nullptr) // must be invalidated first
    return IBV_WC_MW_BIND_ERR;
  if (w.type == IBV_MW_TYPE_2 && key >> 8 != index)
    return IBV_WC_MW_BIND_ERR;
  if ((to.access & ~window_access) != 0)
    return IBV_WC_MW_BIND_ERR;
  region* bound = nullptr;
  if (to.bytes != 0) {
    const slot* const s = find(to.region);
    bound = s == nullptr ? nullptr : s->r;
    if (bound == nullptr || bound->pd != by.pd || (bound->access & IBV_ACCESS_MW_BIND) == 0 ||
        !within(to.first, to.bytes, bound->first, bound->length))
      return IBV_WC_MW_BIND_ERR;
    if ((to.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
        (bound->access & IBV_ACCESS_LOCAL_WRITE) == 0)
      return IBV_WC_MW_BIND_ERR;
  } else if (w.type == IBV_MW_TYPE_2) {
    return IBV_WC_MW_BIND_ERR;
  }
  if (w.bound != nullptr)
    --w.bound->windows;
  w.key = (w.key & ~0xffu) | (key & 0xff);
  slots_[index].tag = static_cast<std::uint8_t>(key);
  w.bound = bound;
  w.first = to.first;
  w.bytes = to.bytes;
  w.access = to.access;
  w.qp_num = by.qp_num;
  if (w.bound != nullptr)
    ++w.bound->windows;
  return IBV_WC_SUCCESS;
}

bool memory_table::invalidate(const ibv_qp& by, std::uint32_t key) {
  const slot* const s = find(key);
  if (s == nullptr || s->w == nullptr)
    return false;
  window& w = *s->w;
  if (w.type != IBV_MW_TYPE_2 || w.bound == nullptr || w.qp_num != by.qp_num)
    return false;
  --w.bound->windows;
  w.bound = nullptr;
  return true;
}

#if SOFT_THREAD_SANITIZER

// A device's accesses are no accesses of a thread. ThreadSanitizer would see them as such, and
// report each WRITE that a program waits for by reading the memory. It sees memmove(3), too, of
// which the compiler makes no volatile accesses.
__attribute__((no_sanitize("thread"))) void move_bytes(std::byte* to, const std::byte* from,
                                                       std::size_t n) noexcept {
  using word = std::uint64_t __attribute__((aligned(1), may_alias));
  const auto* const volatile_from = static_cast<const volatile std::byte*>(from);
  auto* const volatile_to = static_cast<volatile std::byte*>(to);
  const auto* const words_from = reinterpret_cast<const volatile word*>(from);
  auto* const words_to = reinterpret_cast<volatile word*>(to);
  const std::size_t words = n / sizeof(word);
  __sync_synchronize(); // a program may poll one of the words
  if (to <= from || to >= from + n) {
    for (std::size_t i = 0; i != words; ++i)
      words_to[i] = words_from[i];
    for (std::size_t i = words * sizeof(word); i != n; ++i)
      volatile_to[i] = volatile_from[i];
  } else {
    for (std::size_t i = n; i != words * sizeof(word); --i)
      volatile_to[i - 1] = volatile_from[i - 1];
    for (std::size_t i = words; i != 0; --i)
      words_to[i - 1] = words_from[i - 1];
  }
}

#else

void move_bytes(std::byte* to, const std::byte* from, std::size_t n) noexcept {
  if (n == 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) { // a word that a program may poll
    std::uint64_t word = 0;
    std::memcpy(&word, from, 8);
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(to), word, __ATOMIC_RELEASE);
    return;
  }
  std::memmove(to, from, n);
}

#endif

unsigned slice(const spans& whole, std::uint64_t offset, std::uint64_t bytes,
               std::span<std::byte>* to) {
  unsigned n = 0;
  for (unsigned i = 0; i < whole.count && bytes != 0; ++i) {
    const span& p = whole.parts[i];
    if (offset >= p.bytes) {
      offset -= p.bytes;
      continue;
    }
    const std::uint64_t taken = std::min(p.bytes - offset, bytes);
    to[n++] = {p.data + offset, taken};
    bytes -= taken;
    offset = 0;
  }
  return n;
}

void transfer(const spans& to, const spans& from) noexcept {
  unsigned i = 0;
  std::uint64_t used = 0;
  for (unsigned j = 0; j < from.count; ++j) {
    const span& s = from.parts[j];
    for (std::uint64_t done = 0; done < s.bytes;) {
      const std::uint64_t n = std::min(s.bytes - done, to.parts[i].bytes - used);
      move_bytes(to.parts[i].data + used, s.data + done, n);
      done += n;
      used += n;
      if (used == to.parts[i].bytes) {
        ++i;
        used = 0;
      }
    }
  }
}

} // namespace soft
