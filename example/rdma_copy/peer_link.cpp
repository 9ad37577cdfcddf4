// SPDX-License-Identifier: BSL-1.0
#include "peer_link.hpp"

#include <boost/asio/async_result.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <utility>

namespace {

// A peer that sends nothing for this time is considered dead, although its device may still answer.
constexpr std::chrono::seconds patience(60);

} // namespace

peer_link::peer_link(asio::io_context& io, const asio_rdma::device& device, std::string peer)
    : peer_(std::move(peer)),
      domain_(device),
      outgoing_(domain_, protocol::max_message_size, depth, asio_rdma::access::local_read),
      incoming_(domain_, protocol::max_message_size, depth, asio_rdma::access::local_write),
      arrivals_(io, depth + 2),
      patience_(io),
      qp_(io, domain_) {
  for (std::size_t slot = 0; slot < depth; ++slot)
    free_.push_back(slot);
}

void peer_link::start() {
  for (std::size_t slot = 0; slot < depth; ++slot)
    start_receive(slot);
  // When the peer disconnects, all operations in flight end at once.
  qp_.async_wait_disconnect([self = shared_from_this()](error_code) { self->qp_.close(); });
}

void peer_link::start_receive(std::size_t slot) {
  qp_.async_receive(incoming_.buffer(slot, protocol::max_message_size),
                    [self = shared_from_this(), slot](error_code ec, asio_rdma::received r) {
                      self->arrivals_.try_send(ec, arrival{slot, r.bytes});
                    });
}

template <class Handler>
void peer_link::start_send(const protocol::message& m, Handler handler) {
  const std::size_t slot = free_.back();
  free_.pop_back();
  const std::size_t bytes = protocol::encode(
      m, outgoing_(slot, protocol::max_message_size).first<protocol::max_message_size>());
  qp_.async_send(outgoing_.buffer(slot, bytes),
                 [self = shared_from_this(), slot,
                  handler = std::move(handler)](error_code ec, std::size_t) mutable {
                   self->free_.push_back(slot);
                   std::move(handler)(ec);
                 });
}

void peer_link::post(const protocol::message& m) {
  if (free_.empty()) // an honest peer never asks for more messages
    violation();
  start_send(m, [this](error_code ec) {
    if (ec)
      fail(ec);
  });
}

asio::awaitable<void> peer_link::send(const protocol::message& m) {
  if (free_.empty())
    violation();
  error_code ec;
  auto token = asio::redirect_error(asio::use_awaitable, ec);
  co_await asio::async_initiate<decltype(token), void(error_code)>(
      [&](auto handler) { start_send(m, std::move(handler)); }, token);
  if (ec)
    lost(ec);
}

asio::awaitable<void> peer_link::send_failure(const copy_error& why) {
  if (!why.tell())
    co_return;
  const protocol::message m = protocol::failed{*why.tell()};
  try {
    co_await send(m);
  } catch (const copy_error&) { // the peer then notices the end of the connection
  }
}

asio::awaitable<protocol::message> peer_link::receive() {
  patience_.expires_after(patience);
  patience_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec)
      self->fail(asio::error::timed_out);
  });
  error_code ec;
  const arrival a = co_await arrivals_.async_receive(asio::redirect_error(asio::use_awaitable, ec));
  patience_.cancel();
  if (ec)
    lost(ec);
  std::optional<protocol::message> m = protocol::decode(incoming_(a.slot, a.bytes));
  if (!m)
    violation();
  if (const auto* failure = std::get_if<protocol::failed>(&*m))
    throw copy_error(peer_ + " " + protocol::to_string(failure->why));
  start_receive(a.slot);
  co_return std::move(*m);
}

void peer_link::fail(const error_code& ec) { arrivals_.try_send(ec, arrival()); }

void peer_link::close() {
  patience_.cancel();
  qp_.close();
}

void peer_link::violation() const {
  throw copy_error(peer_ + " violated the protocol", protocol::reason::protocol);
}

void peer_link::lost(const error_code& ec) const {
  if (ec == asio::error::connection_reset || ec == asio::error::operation_aborted)
    throw copy_error(peer_ + " went away before the copy was complete");
  if (ec == boost::system::errc::timed_out)
    throw copy_error(peer_ + " does not answer any more");
  throw copy_error(peer_ + ": " + ec.message());
}
