// SPDX-License-Identifier: BSL-1.0
// A connection by verbs alone, for comparison and measurements: no library, no execution context.
#pragma once

#include "session.hpp"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace trial {

/// The completion vector of all queues of a measurement, of the library and of verbs: an adapter
/// may serve each vector by another processor.
inline constexpr int measured_vector = 0;

/// The flow control of a measurement of messages in one direction: the receiver answers each
/// `group` messages by one, and the sender is at most two groups ahead. So a receive is always
/// posted, which iWARP demands.
struct flow {
  std::size_t bytes = 64; ///< Of a message.
  unsigned group = 64;
  bool busy = false; ///< Polls, and never sleeps.

  unsigned receives() const { return 2 * group; }
};

/// The first byte of a message: whether it is the last one.
inline constexpr char more = 'm', last = 'l';

/// A queue pair with its memory, connected by rdma_cm.
class bare_end {
public:
  /// Listens at the address.
  bare_end(const flow& f, const boost::asio::ip::address& local);
  std::uint16_t port() const;
  /// Takes the connection of the other side.
  void accept();
  /// Connects.
  bare_end(const flow& f, const boost::asio::ip::tcp::endpoint& to);
  bare_end(const bare_end&) = delete;
  ~bare_end();
  /// The address vector of the connected queue pair (ibv_query_qp(3)).
  ibv_ah_attr route() const;

  /// Sends messages for so long, and returns how many a second arrived.
  double send_for(double seconds);
  void receive_all();
  /// Sends a message and waits for its answer, for so long. Returns the seconds of a round trip.
  double ask_for(double seconds);
  void answer_all();
  /// Registers memory that the peer may READ.
  remote_buffer lend(std::size_t bytes);
  /// READs the peer's memory for so long, `flow::receives()` times at a time, each time into other
  /// memory. Returns how many READs a second completed.
  double read_for(const remote_buffer& from, double seconds);

private:
  void make_queue_pair();
  ibv_mr* make_region(std::vector<char>& memory, std::size_t bytes, unsigned rights);
  void post_receive(std::uint64_t slot);
  void post_send(char kind, std::size_t bytes);
  void post(ibv_send_wr& request, void* data, std::size_t bytes, const ibv_mr& region);
  /// Waits for completions, and counts them. Returns the first byte of the last message received.
  char wait();

  flow flow_;
  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::vector<char> memory_; // for each receive, and behind them for each send
  ibv_mr* region_ = nullptr;
  std::vector<char> lent_; // or read into
  ibv_mr* lent_region_ = nullptr;
  std::uint32_t inline_limit_ = 0;
  std::uint64_t posted_ = 0, sent_ = 0, received_ = 0;
};

/// Both sides call it: a connected end of each.
awaitable<std::unique_ptr<bare_end>> link_bare(session& s, const flow& f);

/// A connection of rdma_cm without queue pairs: each side tells the other one the number of one.
class bare_request {
public:
  /// Listens at the address.
  explicit bare_request(const boost::asio::ip::address& local);
  std::uint16_t port() const;
  /// Takes the connection of the other side. Returns the features that came with it.
  ibv_ece accept(std::uint32_t number);
  /// Connects.
  bare_request(const boost::asio::ip::tcp::endpoint& to, std::uint32_t number, ibv_ece features);
  bare_request(const bare_request&) = delete;
  ~bare_request();
  /// Answers if the other side ends the connection before `stop`. Returns whether it has.
  bool answer_end(const std::atomic<bool>& stop);

private:
  /// The next event, which must be of this type, or a `failure`; its id.
  rdma_cm_id* expect_event(rdma_cm_event_type wanted);

  rdma_event_channel* channel_;
  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* id_ = nullptr;
};

} // namespace trial
