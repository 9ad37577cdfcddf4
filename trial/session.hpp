// SPDX-License-Identifier: BSL-1.0
// One side of a check: a device, a control stream to the other side, a place for results.
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/exchange.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trial {

namespace asio = boost::asio;
using namespace asio_rdma;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable;
using asio::use_awaitable;
using asio_rdma::access; // there is a function of that name too

/// The end of a check that has found a fault.
struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The end of a check that the device, or the machine, cannot carry out.
struct absence : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool fact, const std::string& otherwise) {
  if (!fact)
    throw failure(otherwise);
}

/// How a check ended at one side.
struct verdict {
  enum class kind { passed, failed, not_here };

  kind what = kind::passed;
  std::string reason;
};
std::string_view word(verdict::kind k);

/// A measured value of the library and, if there is one, of bare verbs.
struct figure {
  std::string name, unit;
  double library = 0;
  double bare = 0; ///< 0: not measured.
  bool smaller_is_better = false;
};

/// The options of the program that a side of a check needs.
struct side_options {
  std::string device; ///< Empty: the best one, or that of the control stream's address.
  double seconds = 2; ///< Of each measurement.
};

/// The IP address of a socket of this machine, if it has one.
std::optional<asio::ip::address> address_of(int socket);

/// Opens the device of that name. Without a name: the device that has the address by which the
/// machines reach each other, which the user has chosen, or the best one.
device open_device(const std::string& name, const std::optional<asio::ip::address>& reached);

enum class side { near, far };

/// One side of a check. Both sides run the same function, in processes of their own, which may be
/// on two machines. The near side connects, and measures; the far side accepts, and answers. A
/// stream of lines, independent of RDMA, connects both.
class session {
public:
  using control_socket = asio::generic::stream_protocol::socket;

  /// `control` is a connected socket to the other side. `results` is a descriptor to which the near
  /// side writes lines for the report.
  session(bool near, const side_options& options, int control, int results);

  bool is_near() const noexcept { return near_; }
  double seconds() const noexcept { return seconds_; }

  /// Sends a line to the other side.
  awaitable<void> tell(std::string line);
  /// Receives the next line of the other side. If the other side has ended its check, its verdict
  /// is thrown.
  awaitable<std::string> hear();
  /// Waits until both sides have called this function.
  awaitable<void> meet();
  /// Throws an `absence` at both sides unless both have the ability.
  awaitable<void> need(bool ability, std::string reason);
  awaitable<void> tell(const remote_buffer& memory);
  awaitable<remote_buffer> hear_memory();
  awaitable<asio::ip::tcp::endpoint> hear_endpoint();
  awaitable<void> tell(const asio::ip::tcp::endpoint& where);

  /// Connects an open object with one of the other side.
  template <connectable Object>
  awaitable<void> link(Object& object, connect_options options = {}) {
    if (near_) {
      const asio::ip::tcp::endpoint where = co_await hear_endpoint();
      connector c(io);
      co_await c.async_connect(object, where, options, use_awaitable);
    } else {
      acceptor a(io, asio::ip::tcp::endpoint(address(), 0));
      co_await tell(a.local_endpoint());
      co_await a.async_accept(object, use_awaitable);
    }
  }
  /// Connects a queue pair with one of the other side, without rdma_cm. Call it before any line is
  /// exchanged: the control stream carries the handshake.
  awaitable<void> exchange(queue_pair& qp) { co_await async_exchange(control_, qp, use_awaitable); }
  /// Whether the other side is a process of this machine.
  bool is_one_machine() const { return control_.local_endpoint().protocol().family() == AF_UNIX; }
  /// The address of this side's device.
  asio::ip::address address() const;

  /// For the report: a property of a side's device, which is a name, a tab and a value; a measured
  /// value; a remark on the check.
  void fact(side of, const std::string& line);
  void add(const figure& f);
  void remark(const std::string& text) { remark_ = text; }

  /// Announces that the other side ends without a verdict.
  void forgo_verdict() noexcept { forgone_ = true; }
  /// Tells the other side this verdict, and returns that of the check: the worse of both.
  awaitable<verdict> conclude(verdict mine);

  asio::io_context io{1};

private:
  awaitable<std::string> read_line();
  void report(std::string line);

  bool near_, forgone_ = false;
  double seconds_;
  int results_;
  control_socket control_;
  std::string received_, remark_;
  bool ended_ = false; // the other side
  verdict of_other_;
  std::string address_;

public:
  device dev;
  protection_domain pd;
};

/// The function of a check, which both sides run.
using check_function = awaitable<void> (*)(session&);

/// Runs one side of a check to its end.
verdict run_side(session& s, check_function f);

} // namespace trial
