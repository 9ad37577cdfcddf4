// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/connection_impl.hpp"
#include "core/background_timer.hpp"
#include "global/global_memory_impl.hpp"

#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

/// A connection to another node, from either side, and the requests that wait for its answers.
struct global_memory_impl::peer {
  /// The receive of the next message.
  class arrival final : public message_receive {
  public:
    arrival(std::shared_ptr<global_memory_impl> to, peer_ptr from)
        : message_receive(&arrival::arrived), to_(std::move(to)), from_(std::move(from)) {}

  private:
    static void arrived(operation* base, disposal how) {
      auto& self = static_cast<arrival&>(static_cast<message_receive&>(*base));
      if (how == disposal::destroy)
        self.fail(asio::error::operation_aborted);
      const auto to = std::move(self.to_);
      const peer_ptr from = std::move(self.from_); // which owns this receive
      const error_code ec = self.ec;
      to->on_message(from, ec, std::exchange(self.result, {}));
    }

    std::shared_ptr<global_memory_impl> to_;
    peer_ptr from_;
  };

  /// A cancelled request, whose answer is outstanding.
  struct cancelled {
    std::uint32_t number;
    global_message::kind what;
    segment_id segment;
  };

  peer(const asio::any_io_executor& ex, bool was_accepted) : link(ex), accepted(was_accepted) {
    forgotten.reserve(most_asked);
  }

  asio_rdma::connection link;
  const bool accepted;
  bool serves = false;                        // the peer may ask at any time: work of the context
  std::optional<global_message> introduction; // once received
  std::list<global_lane> lane;                // set with the introduction, until published
  std::list<global_lane> departure;           // published instead once the node has left
  std::unique_ptr<background_timer> silence;  // until the introduction
  bool connected = false;
  bool refused = false; // by an answer that is on its way: nothing more is taken
  std::optional<arrival> listening;
  std::size_t hints = 0; // on their way to the peer
  bool ended = false;
  operation_list requests;          // which the peer has, or a join
  operation_list waiting;           // behind `most_asked` requests
  std::size_t asked = 0;            // requests to which the answers are outstanding
  std::vector<cancelled> forgotten; // of those
  std::size_t unsent = 0;           // requests on their way to the peer
  std::size_t answers = 0;          // to the peer, on their way
  bool zeroing = false;             // memory for the peer; the answer is sent then
  std::vector<loans::iterator> borrowed;
};

template <class Start>
void global_memory_impl::keep_while_starting(const peer_ptr& p, Start start) {
  peers_.push_back(p);
  try {
    start();
  } catch (...) {
    std::erase(peers_, p);
    throw;
  }
}

} // namespace asio_rdma::detail
