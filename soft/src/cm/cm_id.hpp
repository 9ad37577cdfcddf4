// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_CM_CM_ID_HPP
#define SOFT_CM_CM_ID_HPP

#include "device/objects.hpp"
#include "engine/engine.hpp"
#include "engine/event_source.hpp"

#include "wire/iwarp_wire.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <list>
#include <rdma/rdma_cma.h>

namespace soft {

struct cm_id;

/// Private data of a message of the connection manager: as much as an event can tell.
struct private_data {
  std::array<std::byte, 255> bytes{};
  std::uint8_t size = 0;
};
/// The most bytes that a program may send. The receiver's event always has the whole field, with
/// zeros at its end (InfiniBand specification, 12.6; the request's first 36 bytes are the IP
/// addresses'). Another device of iWARP may send more.
inline constexpr std::uint8_t request_data = 56, reply_data = 196, reject_data = 148;
/// The same for ids of RDMA_PS_UDP, and for a request of them.
inline constexpr std::uint8_t resolution_data = 136, resolution_request_data = 180;
/// The Q_Key of the queue pairs of ids (RDMA_UDP_QKEY).
inline constexpr std::uint32_t default_q_key = 0x01234567;
/// The way from an id to its peer.
inline constexpr std::uint8_t hop_limit = 64;
inline constexpr ibv_mtu path_mtu = IBV_MTU_4096;
inline constexpr std::uint16_t default_partition = 0xffff; ///< P_Key, the same in both byte orders
/// Reasons of a rejection (InfiniBand specification, table 109).
inline constexpr int reject_timeout = 4, reject_no_listener = 8, reject_stale = 10,
                     reject_consumer = 28, reject_options = 35;

struct cm_event : rdma_cm_event {
  cm_id* counted_for = nullptr; ///< the id that is not destroyed before the event is acknowledged
  private_data data;
};

struct cm_channel : rdma_event_channel {
  event_source<cm_event*> events;
};

/// How far an id is on its way to a connection.
enum class cm_state {
  idle,
  bound,      ///< has a local address
  resolved,   ///< has both addresses
  routed,     ///< may connect
  listening,  //
  requesting, ///< the request is sent
  requested,  ///< the peer's request came
  replied,    ///< accepted; the peer's last message is to come
  responded,  ///< the peer's acceptance came
  connected,  //
  ended,      ///< by either side
  removed     ///< with its device
};

struct cm_listener;
struct cm_inquiry;
struct cm_inquiry_listener;
struct cm_answer;

/// An id, and what rsockets (rsocket(7)) read behind it: they take every id for one of librdmacm's
/// own. Its first members are the same in rdma-core 13 to 64 (librdmacm/cma.c).
struct librdmacm_id : rdma_cm_id {
  const void* device; ///< where they read the longest queue of a queue pair
  void* connect = nullptr;
  std::size_t connect_size = 0;
  int events_completed = 0, connect_error = 0;
  int waits = 0; ///< 1: they wait for the event that the last function did not have yet
};

/// A connection that is made, or a listener. The engine must be locked wherever a member is used.
struct cm_id final : librdmacm_id, wire_owner, removable, task {
  counted<&resource_counts::ids> count;
  cm_state state = cm_state::idle;
  bool synchronous = false; ///< the library waits for each event itself
  acknowledged_events events_got;
  bool is_ending = false; ///< rdma_destroy_id(3) has begun: no event comes any more

  // ---- addresses
  int port_holder = -1; ///< a socket that keeps the port: of TCP, or of UDP for datagrams
  bool reuse_address = false;
  int only_v6 = 0;

  // ---- listener
  int backlog = 0;
  int waiting = 0;                                ///< requests that the program has not got
  std::unique_ptr<cm_listener> sockets;           ///< requests of other processes
  std::unique_ptr<cm_inquiry_listener> inquiries; ///< requests for datagrams

  // ---- connection
  cm_id* peer = nullptr;            ///< of this process
  std::shared_ptr<iwarp_wire> wire; ///< to a peer of another process
  iwarp::start_frame first;         ///< the request that was sent, or came
  std::uint32_t qp_num = 0, psn = 0, peer_qp_num = 0, peer_psn = 0;
  std::optional<std::uint8_t> tos; ///< RDMA_OPTION_ID_TOS
  std::uint8_t traffic_class = 0;  ///< of the route
  ibv_ece own_ece{}, peer_ece{};   ///< of the queue pair of a program, and of the peer's
  std::uint8_t initiator_depth = 0, responder_resources = 0, retry_count = 7;
  /// Retries of a request that finds no receive: each side sends a number for its peer to use. The
  /// one that the peer has sent is in force. Source: cm_req_handler, cm_rep_handler and
  /// cm_init_qp_rts_attr in drivers/infiniband/core/cm.c
  std::uint8_t rnr_retry_count = 7, sent_rnr_retry_count = 7;
  std::optional<ibv_qp_init_attr>
      for_requests; ///< of a listener by rdma_create_ep(3): a queue pair for each request
  ibv_pd* pd_for_requests = nullptr;
  std::uint32_t q_key = default_q_key; ///< of datagrams; once known, the peer's
  std::unique_ptr<cm_inquiry> inquiry; ///< for datagrams: the request that was sent
  std::unique_ptr<cm_answer> answer;   ///< or came

  // ---- device
  ibv_context* context_of_device = nullptr; ///< that counts the id; `verbs`, from the address on
  std::list<removable*>::iterator place{};  ///< in that context
  bool shares_domain = false;

  cm_id();
  ~cm_id();
  void started(const iwarp::start_frame& f) override;
  void heard() override;
  void ended(int error) override;
  void on_removal() override;
  void run() override;

  static cm_id& of(rdma_cm_id* id) noexcept { return *static_cast<cm_id*>(id); }
  static cm_channel& channel_of(rdma_event_channel* c) noexcept {
    return *static_cast<cm_channel*>(c);
  }

  /// Whether the id is for datagrams. Then no connection follows: it is connected once it knows its
  /// peer's queue pair, or has accepted the peer's request.
  bool is_datagram() const noexcept { return qp_type == IBV_QPT_UD; }
  /// Whether the id may no longer come to its device, or has lost it.
  bool has_lost_device() const noexcept;
  /// The error of a function whose state does not fit. The kernel does not know the id of a removed
  /// device any more (ucma_get_ctx in drivers/infiniband/core/ucma.c).
  int wrong_state() const noexcept { return state == cm_state::removed ? ENXIO : EINVAL; }

  /// Reports an event. `status`: 0, a negative error number, or a reason of rejection.
  void tell(rdma_cm_event_type what, int status = 0, const private_data* data = nullptr,
            std::uint8_t data_field = 0);
  /// Ends what the id has begun with another id of this process, unless that one answers in time.
  void expect_answer();
  /// Opens the context that ids have, unless it is open. It calls ibv_open_device(3), as librdmacm
  /// does, so that a library that replaces the function sees the context. The engine must not be
  /// locked. nullptr: errno.
  static ibv_context* open_context();
  /// The context that ids have.
  static ibv_context* shared_context() noexcept;
  /// Gives the id that context, as its addresses lead to the device, and its GIDs.
  void use_device() noexcept;
  /// The opposite. Returns the context of a removed device if no id uses it any more, else nullptr.
  ibv_context* leave_device() noexcept;
  /// Gives the id its part in the domain that all ids of the context have (rdma_create_qp(3)), for
  /// `use_device` or, if the id has the context, at once. The engine must not be locked. An error
  /// number.
  int share_domain();
  /// The opposite. The domain ends with the last part in it, unless the program still uses it.
  void leave_domain();
  /// Describes the way to the peer in `route.path_rec`. An error number.
  int fill_path() noexcept;
};

// The messages of the connection manager. Each changes the state of its sender, and of the peer.
/// If there is no listener, or its backlog is full, `from` gets a rejection.
void send_request(cm_id& from, const private_data& data, int rejection);
void send_reply(cm_id& from, const private_data& data);
void send_ready(cm_id& from);
void send_reject(cm_id& from, int reason, const private_data& data);
void send_disconnect(cm_id& from);
/// Ends what `id` has begun; nothing refers to it afterwards.
void withdraw(cm_id& id);

// The way to the peer of an id.
void fill_route(cm_id& id, ibv_ah_attr& a);

// The same messages to a peer in another process: cm_wire.cpp.
void send_request_by_wire(cm_id& from, const private_data& data);
void send_reply_by_wire(cm_id& from, const private_data& data);
void send_reject_by_wire(cm_id& from, iwarp_wire& w, const private_data& data);
/// Accepts the connections of other processes. An error number.
int listen_to_others(cm_id& listener);
void ignore_others(cm_id& listener);
/// A request that came to a listener. Returns the new id, or nullptr: the listener has no room.
cm_id* take_request(cm_id& listener, std::unique_ptr<cm_id> made, const private_data& data);

// Listeners of this process.
/// An error number.
int start_listening(cm_id& id);
void stop_listening(cm_id& id);
/// The requests to all listeners that the program has not got.
int waiting_requests();
cm_id* find_listener(sockaddr& address);

} // namespace soft

#endif
