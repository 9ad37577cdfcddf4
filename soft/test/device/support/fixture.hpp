// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_FIXTURE_HPP
#define SOFT_TEST_DEVICE_FIXTURE_HPP

#include "asio_rdma_soft.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <vector>

namespace soft::test {

/// Puts settings in force for the lifetime of a test case. Fails the test if they are wrong.
class with_settings {
public:
  explicit with_settings(const std::string& text) { replace(text); }
  ~with_settings() { soft_set(""); }
  with_settings(const with_settings&) = delete;
  with_settings& operator=(const with_settings&) = delete;
  void replace(const std::string& text);
};

template <auto Destroy>
struct destroys {
  template <class T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
using owned_context = std::unique_ptr<ibv_context, destroys<ibv_close_device>>;
using owned_pd = std::unique_ptr<ibv_pd, destroys<ibv_dealloc_pd>>;
using owned_channel = std::unique_ptr<ibv_comp_channel, destroys<ibv_destroy_comp_channel>>;
using owned_cq = std::unique_ptr<ibv_cq, destroys<ibv_destroy_cq>>;
using owned_srq = std::unique_ptr<ibv_srq, destroys<ibv_destroy_srq>>;
using owned_qp = std::unique_ptr<ibv_qp, destroys<ibv_destroy_qp>>;
using owned_ah = std::unique_ptr<ibv_ah, destroys<ibv_destroy_ah>>;
using owned_mr = std::unique_ptr<ibv_mr, destroys<ibv_dereg_mr>>;

/// Opens soft0. nullptr: errno.
owned_context open_soft();
ibv_device_attr attributes(ibv_context& c);
/// The number of open descriptors of this process that are no pipes.
std::size_t open_descriptors();
/// The index of the GID of a loopback address: 127.0.0.1, or ::1 if `v6`.
std::uint8_t loopback_index(ibv_context& c, bool v6 = false);

/// The next completion of a queue; polls until there is one. The test fails after two minutes.
ibv_wc completion(ibv_cq* q);

/// One side of a connection: a queue pair with its own completion queue, and registered memory.
struct side {
  static constexpr int depth = 64;
  struct options {
    bool shared = false;      ///< a shared receive queue
    bool all_signaled = true; ///< sq_sig_all
    ibv_qp_type type = IBV_QPT_RC;
    std::uint64_t operations = 0;                 ///< IBV_QP_EX_WITH_*: for ibv_wr_post(3)
    std::uint32_t elements = 1, inline_bytes = 0; ///< of a request
  };
  explicit side(ibv_context& c) : side(c, options()) {}
  side(ibv_context& c, const options& o);

  owned_pd pd;
  owned_channel channel;
  owned_cq cq;
  owned_srq srq;
  owned_qp qp;
  ibv_qp_ex* built = nullptr; ///< the queue pair, if it has operations for ibv_wr_post(3)
  std::vector<std::byte> memory;
  owned_mr mr;

  /// To a state of a connection with `peer`, or to the error state: ibv_modify_qp's result.
  int to(ibv_qp_state state, const side* peer = nullptr, std::uint8_t timeout = 8) {
    return to(state, peer != nullptr ? peer->qp->qp_num : 0, timeout);
  }
  /// The same, by the number of the peer's queue pair.
  int to(ibv_qp_state state, std::uint32_t peer, std::uint8_t timeout = 8);
  /// A signaled request with one element.
  static ibv_send_wr request(std::uint64_t id, ibv_wr_opcode opcode, ibv_sge& element);
  /// An element of the memory.
  ibv_sge element(std::size_t offset, std::uint32_t bytes) const;
  int receive(std::uint64_t id, std::size_t offset = 0, std::uint32_t bytes = 256);
  int send(std::uint64_t id, std::size_t offset = 0, std::uint32_t bytes = 8);
  /// A WRITE to, or a READ or an atomic of, the peer's memory at its beginning.
  int remote(std::uint64_t id, ibv_wr_opcode opcode, const side& peer, std::uint32_t bytes = 8);
  ibv_wc completion(); ///< of its queue
  /// Whether there is none now.
  bool is_quiet();
  std::array<std::byte, 8> bytes_at(std::size_t offset) const;
  /// The way of datagrams to queue pairs of this machine.
  owned_ah way_here() const;
};

/// The Q_Key of the datagrams of `side`.
inline constexpr std::uint32_t test_q_key = 0x11111111;

/// Connects two queue pairs of this process, or makes two of type UD ready. `timeout` is that of
/// ibv_modify_qp(3): a request without an answer ends after 2 * 4.096 us * 2^timeout.
void connect(side& a, side& b, std::uint8_t timeout = 8);

/// Two sides that are connected.
struct connected_pair {
  explicit connected_pair(const side::options& o = {});
  owned_context context;
  side a, b;
};

/// Shows that a side has posted nothing, and that it can: the next completion is that of `id`.
void check_clean(side& s, const side& peer, std::uint64_t id);

/// A port of 127.0.0.1.
sockaddr_in local_address(std::uint16_t port);

/// The state of a queue pair as the device has it.
ibv_qp_state state_of(ibv_qp& qp);

/// Whether the device has written `value`. ThreadSanitizer does not see the read, which it would
/// report as a race.
bool is_now(const std::byte& place, std::byte value);
/// Waits until it has.
void wait_for(const std::byte& place, std::byte value);
/// A byte that the device may be writing. ThreadSanitizer does not see this read, either.
std::byte value_now(const std::byte& place);

/// The next asynchronous event, acknowledged; waits for it.
ibv_event_type next_event(ibv_context& c);
bool has_event(ibv_context& c);

using clock = std::chrono::steady_clock;

} // namespace soft::test

#endif
