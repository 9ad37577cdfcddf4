// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_SEND_QUEUE_HPP
#define SOFT_DEVICE_SEND_QUEUE_HPP

#include "device/work_queue.hpp"
#include "settings/personality.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace soft {

/// The requests of a queue pair. A thread builds requests in their places in the ring, and then
/// posts all of them at once: ibv_post_send(3) in one call, ibv_wr_post(3) in several.
class send_queue {
public:
  send_queue(const ibv_qp_init_attr& a, const personality& p);

  // ---- for the engine, as `request_ring`
  send_work* at(unsigned n) noexcept { return ring_.at(n); }
  send_work* front() noexcept { return ring_.front(); }
  std::uint64_t position(unsigned n) const noexcept { return ring_.position(n); }
  void take() noexcept { ring_.take(); }

  // ---- from any thread
  /// Posts the requests from `first` on. If one cannot be posted, `first` is that one afterwards.
  /// Errors: EINVAL, ENOMEM (full). `posted`: as in `send_work`.
  [[gnu::always_inline]] int post(ibv_send_wr*& first, std::uint32_t posted) noexcept;
  /// Begins to build requests. Other threads wait until `complete` or `abort`.
  void start() noexcept { posting_.lock(); }
  /// Posts what was built since `start`. After an error nothing is posted.
  int complete() noexcept;
  void abort() noexcept { finish(); }

  // ---- between `start` and `complete`, which returns the first error
  void refuse(int error) noexcept {
    lacks_ = permission;
    if (error_ == 0)
      error_ = error;
  }
  /// Sets `send_work::posted` of all requests that are built.
  void stamp(std::uint32_t posted) noexcept;
  /// The next request, without what its opcode needs; nullptr: it is refused. `flags`: without
  /// IBV_SEND_INLINE.
  [[gnu::always_inline]] send_work* begin(ibv_wr_opcode opcode, std::uint64_t id, unsigned flags,
                                          std::uint32_t immediate) noexcept {
    send_work* const r = lacks_ == 0 ? ring_.place(built_) : nullptr;
    if (r == nullptr) [[unlikely]] {
      refuse(lacks_ != 0 ? EINVAL : ENOMEM);
      return nullptr;
    }
    ++built_;
    fill(*r, opcode, id, flags & ~static_cast<unsigned>(IBV_SEND_INLINE), immediate);
    building_ = r;
    lacks_ = has_data(opcode) ? setters_ : 0;
    return r;
  }
  /// The data of the present request. Each request that has data gets it once.
  void set_elements(const ibv_sge* elements, std::size_t n) noexcept {
    if (!sets(data) || !add_elements(*building_, elements, n)) [[unlikely]]
      refuse(EINVAL);
  }
  void set_inline(const ibv_data_buf* buffers, std::size_t n) noexcept {
    if (!sets(data) || fetches(building_->opcode) || !copy(*building_, buffers, n)) [[unlikely]]
      return refuse(EINVAL);
    building_->flags |= IBV_SEND_INLINE;
  }
  /// Where the present datagram goes.
  void set_address(ibv_ah* handle, std::uint32_t qp_num, std::uint32_t q_key) noexcept {
    if (!sets(address) || handle == nullptr) [[unlikely]]
      return refuse(EINVAL);
    building_->way = *static_cast<address_handle*>(handle);
    building_->qp_num = qp_num;
    building_->q_key = q_key;
  }

private:
  // The parts that a request lacks until they are set. After an error it lacks the permission to be
  // posted, which nothing sets.
  enum setter : unsigned { data = 1, address = 2, permission = 4 };
  static bool has_data(ibv_wr_opcode o) noexcept {
    return o != IBV_WR_BIND_MW && o != IBV_WR_LOCAL_INV;
  }
  bool sets(setter s) noexcept {
    if ((lacks_ & s) == 0)
      return false;
    lacks_ &= ~static_cast<unsigned>(s);
    return true;
  }

  void fill(send_work& r, ibv_wr_opcode opcode, std::uint64_t id, unsigned flags,
            std::uint32_t immediate) const noexcept {
    r.wr_id = id;
    r.opcode = opcode;
    r.flags = flags | signaled_;
    r.immediate = immediate;
    r.count = r.inline_bytes = 0;
  }
  bool add_elements(send_work& r, const ibv_sge* elements, std::size_t n) const noexcept {
    if (n > (r.opcode == IBV_WR_RDMA_READ ? read_elements_ : elements_)) [[unlikely]]
      return false;
    r.count = static_cast<std::uint16_t>(n);
    if (n == 1)
      *r.elements() = *elements;
    else
      std::copy_n(elements, n, r.elements());
    return true;
  }
  // Copies the bytes of buffers one after another, unless there are too many.
  template <class Buffer>
  [[gnu::always_inline]] bool copy(send_work& r, const Buffer* buffers,
                                   std::size_t n) const noexcept {
    std::byte* to = r.data();
    std::size_t room = inline_bytes_;
    for (const Buffer* b = buffers; b != buffers + n; ++b) {
      const std::size_t bytes = b->length;
      if (bytes > room) [[unlikely]]
        return false;
      if (bytes != 0)
        std::memcpy(to, address_of(*b), bytes);
      to += bytes;
      room -= bytes;
    }
    r.inline_bytes = static_cast<std::uint16_t>(inline_bytes_ - room);
    return true;
  }
  static const void* address_of(const ibv_data_buf& b) noexcept { return b.addr; }
  static const void* address_of(const ibv_sge& e) noexcept {
    return reinterpret_cast<const void*>(e.addr);
  }
  [[gnu::always_inline]] bool build(send_work& r, const ibv_send_wr& from) const noexcept;
  void finish() noexcept {
    built_ = lacks_ = 0;
    error_ = 0;
    posting_.unlock();
  }

  request_ring<send_work> ring_;
  const unsigned elements_, read_elements_; ///< limits of a request
  const std::uint32_t inline_bytes_;
  const unsigned signaled_; ///< IBV_SEND_SIGNALED or 0: sq_sig_all
  const unsigned setters_;  ///< what a request with data needs
  const bool has_atomics_, invalidates_;
  spin_mutex posting_;
  // ---- with `posting_` locked: zero, unless requests are being built
  unsigned built_ = 0;
  unsigned lacks_ = 0;
  int error_ = 0;
  send_work* building_ = nullptr;
};

// False: the queue pair has no such request, or a datagram has no address.
inline bool send_queue::build(send_work& r, const ibv_send_wr& from) const noexcept {
  fill(r, from.opcode, from.wr_id, from.send_flags, from.imm_data);
  switch (from.opcode) {
  case IBV_WR_ATOMIC_CMP_AND_SWP:
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    if (!has_atomics_)
      return false;
    r.address = from.wr.atomic.remote_addr;
    r.key = from.wr.atomic.rkey;
    r.compare_add = from.wr.atomic.compare_add;
    r.swap = from.wr.atomic.swap;
    break;
  case IBV_WR_LOCAL_INV:
    if (!invalidates_)
      return false;
    break;
  case IBV_WR_BIND_MW:
    r.key = from.bind_mw.rkey;
    r.binding = binding_of(*from.bind_mw.mw, from.bind_mw.bind_info);
    break;
  default:
    if ((setters_ & address) != 0) {
      if (from.wr.ud.ah == nullptr)
        return false;
      r.way = *static_cast<address_handle*>(from.wr.ud.ah);
      r.qp_num = from.wr.ud.remote_qpn;
      r.q_key = from.wr.ud.remote_qkey;
    } else {
      r.address = from.wr.rdma.remote_addr;
      r.key = from.wr.rdma.rkey;
    }
  }
  const auto n = static_cast<unsigned>(from.num_sge); // a negative number is beyond all limits
  if ((from.send_flags & IBV_SEND_INLINE) == 0)
    return add_elements(r, from.sg_list, n);
  return n <= elements_ && !fetches(from.opcode) && copy(r, from.sg_list, n);
}

inline int send_queue::post(ibv_send_wr*& first, std::uint32_t posted) noexcept {
  const std::lock_guard lock(posting_);
  int error = 0;
  unsigned n = 0;
  for (; first != nullptr; first = first->next, ++n) {
    send_work* const r = ring_.place(n);
    if (r == nullptr || !build(*r, *first)) [[unlikely]] {
      error = r == nullptr ? ENOMEM : EINVAL;
      break;
    }
    r->posted = posted;
  }
  ring_.add(n);
  return error;
}

} // namespace soft

#endif
