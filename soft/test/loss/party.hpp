// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_LOSS_PARTY_HPP
#define SOFT_TEST_LOSS_PARTY_HPP

#include "scene.hpp"
#include "support/fixture.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <rdma/rdma_cma.h>
#include <string>
#include <vector>

namespace soft::test {

/// The memory that a side grants to its peer.
struct grants {
  std::uint64_t address = 0;
  std::array<std::uint32_t, areas> keys{};
};

/// The result of a scene at one side. Requests and receives are counted from the first one on.
struct report {
  std::array<char, 200> fault{}; ///< the first fault, or empty
  bool established = false;
  bool disconnected = false;
  unsigned posted = 0;   ///< requests
  unsigned sent = 0;     ///< requests that have succeeded
  unsigned fetched = 0;  ///< up to the last READ or atomic that has succeeded
  unsigned received = 0; ///< messages
  unsigned carried = 0;  ///< requests of the peer whose effect is whole
  unsigned touched = 0;  ///< up to the last request of the peer that has had any effect
  bool is_clean = true;  ///< no object is left
};

/// A channel of rdma_cm events, and the ids whose events come there.
using owned_events = std::unique_ptr<rdma_event_channel, destroys<rdma_destroy_event_channel>>;

/// One side of a connection that plays its part of a scene. Each function that waits ends by
/// `connection_ended` once the connection has, and by `stuck` if nothing comes for `patience`.
class party {
public:
  struct connection_ended {};
  struct stuck {};
  static constexpr std::chrono::seconds patience{20};

  /// `context`: of the ids. `events`: of the connection.
  party(const scene& s, role r, ibv_context& context, rdma_event_channel& events);
  ~party();
  party(const party&) = delete;
  party& operator=(const party&) = delete;

  grants own_grants() const;
  void set_peer(const grants& g) { peer_ = g; }
  /// Takes an id that has a device, and makes its queue pair. `finish` destroys it.
  void take(rdma_cm_id* id);

  // ---- a part, step by step
  void connect();
  void accept();
  /// Waits until the connection is established.
  void be_established();
  /// Posts the next receive.
  void receive();
  /// Posts the next `n` requests in one list.
  void post(unsigned n);
  /// Waits until so many have succeeded in all.
  void await_sent(unsigned n);
  void await_received(unsigned n);
  void disconnect();

  /// All of the part.
  void play();

  /// Notes as a fault that the part is stuck, and disconnects.
  void give_up();
  /// Waits for the end of the connection and of all that was posted, destroys everything, and looks
  /// at the memory. `connected`: `connect` or `accept` was called, so that an event tells the end.
  report finish(bool connected);

private:
  /// Notes a fault, if it is the first one.
  void fault(const std::string& what);
  struct frees_window { // ibv_dealloc_mw is another function in each source
    void operator()(ibv_mw* w) const { ibv_dealloc_mw(w); }
  };

  void next_event();
  void take_event(const rdma_cm_event& e);
  void take_completions();
  bool has_succeeded(const ibv_wc& wc, unsigned done, unsigned posted, bool& flushed,
                     const char* what);
  void check_sent(const ibv_wc& wc);
  void check_received(const ibv_wc& wc);
  bool has_ended() const { return event_of_end_ || sends_flushed_ || receives_flushed_; }
  template <class Condition>
  void await(Condition holds, bool until_the_end = true);
  void see_the_end();
  ibv_send_wr work_of(unsigned i, ibv_sge& element);
  const request& message(unsigned i) const { return theirs_[messages_[i]]; }
  void flush();
  void destroy();
  void look_at_memory();

  const scene& scene_;
  const role role_;
  const std::vector<request> own_, theirs_;
  std::vector<unsigned> messages_; ///< the requests of the peer that take a receive
  const std::vector<std::byte> before_, after_;
  std::vector<std::byte> memory_;
  soft_resources resources_{};
  rdma_event_channel& events_;
  rdma_cm_id* id_ = nullptr;
  grants peer_;
  bool plays_ = false; ///< posts receives itself

  // ---- the device's objects
  owned_pd pd_;
  owned_channel channel_;
  owned_cq sends_, receives_;
  std::array<owned_mr, areas> regions_;
  std::unique_ptr<ibv_mw, frees_window> window_;
  std::uint32_t window_key_ = 0;

  // ---- what has happened
  report report_;
  bool event_of_end_ = false;
  unsigned posted_receives_ = 0;
  unsigned sends_done_ = 0, receives_done_ = 0; ///< completions, of any status
  bool sends_flushed_ = false, receives_flushed_ = false;
};

} // namespace soft::test

#endif
