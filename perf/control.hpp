// SPDX-License-Identifier: BSL-1.0
// The TCP connection by which both sides agree on measurements.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace perf {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using boost::system::system_error;

/// The end of the session: the peer is gone, or breaks the rules, or a limit of time is over.
struct session_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The peer has reported that it cannot carry out a measurement.
struct refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A stream of lines. Every line of the peer is bounded, and is waited for within a limit of time.
class control {
public:
  static constexpr std::size_t longest_line = 600;

  control(asio::io_context& io, tcp::socket socket);

  /// From now on the steps have `seconds` in all. Then the connection is closed, and they fail.
  void allow(double seconds);

  awaitable<void> tell(std::string line);
  /// The next line of the peer, with printable characters only. Throws `session_error`; a line
  /// "refused REASON" is thrown as `refusal`.
  awaitable<std::string> hear();
  /// As `hear`, for a line that begins with this word: returns the rest.
  awaitable<std::string> hear(std::string_view word);

  /// Runs `what` unless the peer ends the connection, or sends a line other than `allowed`, or the
  /// time is over; then `what` is cancelled, and the reason is thrown. The next `hear` returns the
  /// line `allowed`.
  awaitable<void> guard(awaitable<void> what, std::string_view allowed = {});

  /// Ends the connection: every pending step fails with `session_error`.
  void end(const std::string& reason);
  /// Ends `hear` and `guard`, now and later, with `session_error`. Lines can still be sent.
  void interrupt();

  asio::ip::address local_address() const;
  asio::ip::address peer_address() const;

private:
  /// Returns when there is a reason to cancel.
  awaitable<void> watch(std::string_view allowed);
  [[noreturn]] void fail(const error_code& ec) const;

  tcp::socket socket_;
  asio::steady_timer deadline_;
  std::string received_, reason_;
  bool interrupted_ = false;
  error_code lost_;                // noticed while no line was waited for
  std::shared_ptr<control*> self_; // for a timer that has expired when the object is destroyed
};

/// The address without the form of IPv6 for IPv4.
asio::ip::address plain(const asio::ip::address& a);

} // namespace perf
