// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_MEMORY_HPP
#define SOFT_DEVICE_MEMORY_HPP

#include "device/objects.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace soft {

/// The device's own mapping of a part of a dma-buf, or of a memfd that stands for one. The program
/// needs no mapping, and its own may forbid every access.
class dma_buf_mapping {
public:
  dma_buf_mapping() = default;
  dma_buf_mapping(const dma_buf_mapping&) = delete;
  dma_buf_mapping& operator=(const dma_buf_mapping&) = delete;
  ~dma_buf_mapping();

  /// Maps `bytes` bytes from `offset` on. Returns 0 or an error number: EBADF, EINVAL if `fd` is
  /// neither kind or has fewer bytes, or the system's.
  int map(int fd, std::uint64_t offset, std::size_t bytes, bool writable);
  /// The first of the bytes.
  std::byte* data() const noexcept { return data_; }

private:
  void* pages_ = nullptr;
  std::size_t size_ = 0;
  std::byte* data_ = nullptr;
};

struct region : ibv_mr {
  counted<&resource_counts::regions> count;
  dma_buf_mapping dma_buf;     ///< of a region of a dma-buf
  std::byte* memory = nullptr; ///< `addr`, or the beginning of `dma_buf`
  std::uint64_t first = 0;     ///< the address that a request names for `memory`
  unsigned access = 0;
  std::uint64_t pinned = 0; ///< bytes that count as locked memory
  int windows = 0;          ///< windows that are bound to it
};

/// The memory that a request binds a window to. It names both by their keys at the time of its
/// post: the program may have freed them since.
struct window_binding {
  std::uint32_t window, region; ///< 0: no region
  std::uint64_t first, bytes;
  unsigned access;
};
inline window_binding binding_of(const ibv_mw& w, const ibv_mw_bind_info& to) noexcept {
  return {w.rkey, to.mr == nullptr ? 0 : to.mr->lkey, to.addr, to.length, to.mw_access_flags};
}

struct window : ibv_mw {
  counted<&resource_counts::windows> count;
  std::uint32_t key = 0; ///< the present one; `ibv_mw::rkey` is the program's
  region* bound = nullptr;
  std::uint64_t first = 0, bytes = 0;
  unsigned access = 0;
  std::uint32_t qp_num =
      0; ///< the queue pair that bound it: only the peer of that one may use it (type 2B)
};

/// A piece of memory.
struct span {
  std::byte* data;
  std::uint64_t bytes;
};
/// Pieces one after another: the elements of a work request.
struct spans {
  span parts[34]; // two more than a request may have: a datagram's header and padding
  unsigned count = 0;
  std::uint64_t bytes = 0;

  void add(std::byte* data, std::uint64_t n) {
    if (n == 0)
      return;
    parts[count++] = {data, n};
    bytes += n;
  }
};

/// Why a peer must not use the memory that it names.
enum class refusal {
  unknown_key,
  other_domain, ///< or the window of another queue pair
  no_right,
  out_of_bounds
};

/// Whether an atomic of 8 bytes may be here. The remote address tells the alignment of memory only
/// if it is the address of the memory: that of a zero-based window is an offset.
inline bool is_aligned_word(const std::byte* memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory) % 8 == 0;
}

/// All regions and windows of this process by their keys: an index, and 8 bits that change with
/// each use of the index. The engine must be locked.
class memory_table {
public:
  static memory_table& get();

  /// Gives `r` or `w` their keys. False: no key is left.
  bool add(region& r);
  bool add(window& w);
  void remove(region& r);
  void remove(window& w);
  /// Makes those of contexts whose device was removed unreachable.
  void end_removed();

  /// Adds the memory of a request's elements to `to`. `access`: rights that its
  /// region must have. False:
  /// an element names memory that the request must not use.
  bool resolve(const ibv_pd* pd, std::span<const ibv_sge> elements, unsigned access,
               spans& to) const;
  /// Whether all of `memory`, of which `resolve` said so before, is still registered with these
  /// rights. `as_of`: the removals so far when that was known last.
  bool still_has(const ibv_pd* pd, const spans& memory, unsigned access,
                 std::uint64_t& as_of) const;
  std::uint64_t removals() const noexcept { return removals_; }
  /// The memory that a peer names, or nullptr and the reason. `access`: one of IBV_ACCESS_REMOTE_*.
  std::byte* remote(const ibv_qp& responder, std::uint32_t key, std::uint64_t address,
                    std::uint64_t bytes, unsigned access, refusal& why) const;

  /// The address by which the program names a byte of a region: another one if the region is of a
  /// dma-buf.
  std::byte* as_named(std::byte* byte) const noexcept;

  /// Binds a window. Returns IBV_WC_SUCCESS, or the status of the request that fails.
  /// `key`: the window's new one.
  ibv_wc_status bind(const ibv_qp& by, std::uint32_t key, const window_binding& to);
  /// Ends the binding of the window with this key. False: it is not one that the queue pair `by`
  /// may invalidate.
  bool invalidate(const ibv_qp& by, std::uint32_t key);

private:
  struct slot {
    region* r = nullptr;
    window* w = nullptr;
    std::uint8_t tag = 0;
    std::uint32_t next_free = 0;
  };
  std::byte* local(const ibv_pd* pd, const ibv_sge& e, unsigned access) const;
  std::uint32_t take();
  void give_back(std::uint32_t index);
  const slot* find(std::uint32_t key) const;

  std::vector<slot> slots_{1}; // key 0 is no key
  std::uint32_t free_ = 0;
  std::uint64_t removals_ = 0; // of regions
};

/// The parts of `whole` that hold `bytes` bytes from `offset` on. Returns their number, which is at
/// most that of `whole`.
unsigned slice(const spans& whole, std::uint64_t offset, std::uint64_t bytes,
               std::span<std::byte>* to);
/// Copies `n` bytes, which may overlap, as a device does: unseen by ThreadSanitizer, in whole words
/// where both are aligned.
void move_bytes(std::byte* to, const std::byte* from, std::size_t n) noexcept;
/// Copies all bytes of `from` to the beginning of `to`, which has room for them.
void transfer(const spans& to, const spans& from) noexcept;

} // namespace soft

#endif
