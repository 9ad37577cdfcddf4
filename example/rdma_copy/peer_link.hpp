// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "copy_error.hpp"
#include "protocol.hpp"

#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace asio = boost::asio;
using boost::system::error_code;

/// Registered memory of `count` equal slots.
class slots {
public:
  slots(const asio_rdma::protection_domain& pd, std::size_t slot_size, std::size_t count,
        asio_rdma::access rights)
      : slot_size_(slot_size),
        memory_(std::make_unique_for_overwrite<std::byte[]>(slot_size * count)),
        region_(pd, memory_.get(), slot_size * count, rights) {}

  std::span<std::byte> operator()(std::size_t slot, std::size_t bytes) const {
    return {memory_.get() + slot * slot_size_, bytes};
  }
  asio_rdma::mutable_buffer buffer(std::size_t slot, std::size_t bytes) const {
    return region_.buffer(slot * slot_size_, bytes);
  }
  asio_rdma::remote_buffer remote() const { return region_.remote(); }

private:
  std::size_t slot_size_;
  std::unique_ptr<std::byte[]> memory_;
  asio_rdma::memory_region region_;
};

/// A queue pair that carries messages of the protocol, with registered memory for both directions.
/// Errors are thrown as `copy_error`, in terms of the peer.
class peer_link : public std::enable_shared_from_this<peer_link> {
public:
  peer_link(asio::io_context& io, const asio_rdma::device& device, std::string peer);

  asio_rdma::queue_pair& queue_pair() noexcept { return qp_; }
  const asio_rdma::protection_domain& domain() const noexcept { return domain_; }

  /// Posts the receives. Call it before the queue pair is connected, as the peer may send at once.
  void start();
  /// Whether there is room for another message: the peer has taken enough of those sent.
  bool may_post() const noexcept { return !free_.empty(); }
  /// Sends without waiting; if the send fails, `receive` fails too.
  void post(const protocol::message& m);
  /// Sends, and waits until the peer has the message.
  asio::awaitable<void> send(const protocol::message& m);
  /// Tells the peer why the copy ends, if `why` has a reason for the peer and the peer can be
  /// reached.
  asio::awaitable<void> send_failure(const copy_error& why);
  /// The next message.
  asio::awaitable<protocol::message> receive();
  /// The next message, which must be of type M.
  template <class M>
  asio::awaitable<M> receive_as() {
    protocol::message m = co_await receive();
    if (!std::holds_alternative<M>(m))
      violation();
    co_return std::get<M>(std::move(m));
  }
  /// Makes `receive` fail with `ec`.
  void fail(const error_code& ec);
  /// Ends the connection. When it returns, the device uses no memory of this object.
  void close();

  [[noreturn]] void violation() const;
  [[noreturn]] void lost(const error_code& ec) const;

private:
  // Messages in flight in each direction: one for each slot, and a few at the beginning and the
  // end.
  static constexpr std::size_t depth = protocol::max_window + 4;

  struct arrival {
    std::size_t slot = 0;
    std::size_t bytes = 0;
  };

  void start_receive(std::size_t slot);
  template <class Handler>
  void start_send(const protocol::message& m, Handler handler);

  std::string peer_;
  asio_rdma::protection_domain domain_;
  slots outgoing_, incoming_;
  std::vector<std::size_t> free_; // indices of free slots in outgoing_
  asio::experimental::channel<void(error_code, arrival)> arrivals_;
  asio::steady_timer patience_;
  asio_rdma::queue_pair qp_; // destroyed before the memory that its device uses
};
