// SPDX-License-Identifier: BSL-1.0
#include "session.hpp"

#include "processes.hpp"
#include "report.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace trial {

namespace {

/// The address family of the control stream.
asio::generic::stream_protocol protocol_of(int socket) {
  sockaddr_storage a{};
  socklen_t size = sizeof a;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&a), &size);
  return {a.ss_family, a.ss_family == AF_UNIX ? 0 : IPPROTO_TCP};
}

} // namespace

std::optional<asio::ip::address> address_of(int socket) {
  asio::ip::tcp::endpoint ip;
  auto size = socklen_t(ip.capacity());
  if (::getsockname(socket, ip.data(), &size) != 0 ||
      (ip.data()->sa_family != AF_INET && ip.data()->sa_family != AF_INET6))
    return {};
  const asio::ip::address result = ip.address();
  if (result.is_v6() && result.to_v6().is_v4_mapped())
    return make_address_v4(asio::ip::v4_mapped, result.to_v6());
  return result;
}

device open_device(const std::string& name, const std::optional<asio::ip::address>& reached) {
  if (!name.empty())
    return device::open(name);
  if (reached) {
    error_code ec;
    device d = device::open_for(*reached, ec);
    if (!ec)
      return d;
  }
  return device::open_first();
}

std::string_view word(verdict::kind k) {
  return k == verdict::kind::passed ? "passed" : k == verdict::kind::failed ? "failed" : "not here";
}

session::session(bool near, const side_options& options, int control, int results)
    : near_(near),
      seconds_(options.seconds),
      results_(results),
      control_(io, protocol_of(control), control),
      dev(open_device(options.device, address_of(control))),
      pd(dev) {
  // The address of the control stream is the one that the user has chosen.
  const auto reached = address_of(control);
  const std::vector<asio::ip::address> all = dev.addresses();
  if (reached && std::find(all.begin(), all.end(), *reached) != all.end())
    address_ = reached->to_string();
  else if (const char* given = std::getenv("ASIO_RDMA_ADDRESS"))
    address_ = given;
  else if (!all.empty())
    address_ = all.front().to_string();
}

asio::ip::address session::address() const {
  expect(!address_.empty(), "the device has no IP address, which rdma_cm needs");
  return asio::ip::make_address(address_);
}

awaitable<void> session::tell(std::string line) {
  line += '\n';
  co_await asio::async_write(control_, asio::buffer(line), use_awaitable);
}

awaitable<std::string> session::read_line() {
  const std::size_t n = co_await asio::async_read_until(control_, asio::dynamic_buffer(received_),
                                                        '\n', use_awaitable);
  std::string line = received_.substr(0, n - 1);
  received_.erase(0, n);
  co_return line;
}

awaitable<std::string> session::hear() {
  std::string line = co_await read_line();
  if (line.rfind("end ", 0) != 0)
    co_return line;
  ended_ = true;
  of_other_.what = static_cast<verdict::kind>(line.at(4) - '0');
  of_other_.reason = line.substr(6);
  if (of_other_.what == verdict::kind::not_here)
    throw absence(of_other_.reason);
  throw failure(of_other_.what == verdict::kind::passed ? "the other side ended early"
                                                        : "other side: " + of_other_.reason);
}

awaitable<void> session::meet() {
  co_await tell(std::string("here"));
  co_await hear();
}

awaitable<void> session::need(bool ability, std::string reason) {
  co_await tell(std::string(ability ? "able" : "unable"));
  const std::string other = co_await hear();
  if (!ability || other != "able")
    throw absence(reason);
}

awaitable<void> session::tell(const remote_buffer& m) {
  std::ostringstream text;
  text << m.address << ' ' << m.size << ' ' << m.rkey;
  co_await tell(text.str());
}

awaitable<remote_buffer> session::hear_memory() {
  std::istringstream text(co_await hear());
  remote_buffer result{};
  text >> result.address >> result.size >> result.rkey;
  expect(!text.fail(), "the other side did not tell where its memory is");
  co_return result;
}

awaitable<void> session::tell(const asio::ip::tcp::endpoint& where) {
  co_await tell(where.address().to_string() + ' ' + std::to_string(where.port()));
}

awaitable<asio::ip::tcp::endpoint> session::hear_endpoint() {
  std::istringstream text(co_await hear());
  std::string address;
  std::uint16_t port = 0;
  text >> address >> port;
  expect(!text.fail(), "the other side did not tell where it listens");
  co_return asio::ip::tcp::endpoint(asio::ip::make_address(address), port);
}

void session::fact(side of, const std::string& line) {
  report(std::string(of == side::near ? "fact" : "far fact") + '\t' + line);
}

void session::add(const figure& f) {
  std::ostringstream line;
  line << "figure\t" << f.name << '\t' << f.unit << '\t' << f.library << '\t' << f.bare << '\t'
       << f.smaller_is_better;
  report(line.str());
}

void session::report(std::string line) {
  line += '\n';
  if (results_ >= 0 && ::write(results_, line.data(), line.size()) < 0)
    throw failure("the report is gone");
}

awaitable<verdict> session::conclude(verdict mine) {
  if (mine.what == verdict::kind::passed)
    mine.reason = remark_;
  // The other side writes the report, and does not know the names of this side.
  mine.reason = without_names(mine.reason, personal_names({}));
  if (forgone_)
    co_return mine;
  try {
    co_await tell("end " + std::to_string(int(mine.what)) + ' ' + mine.reason);
    // After a fault here the other side may never end.
    asio::steady_timer timer(io, std::chrono::seconds(3));
    if (mine.what != verdict::kind::passed)
      timer.async_wait([this](error_code e) {
        if (!e)
          control_.cancel(e);
      });
    while (!ended_)
      co_await hear();
  } catch (const std::exception&) { // the verdict of the other side, or none
  }
  if (mine.what == verdict::kind::passed && (!ended_ || of_other_.what != mine.what)) {
    mine.what = ended_ ? of_other_.what : verdict::kind::failed;
    mine.reason = "other side: " + (ended_ ? of_other_.reason : "ended without a verdict");
  } else if (mine.what == verdict::kind::failed && ended_ &&
             of_other_.what == verdict::kind::failed &&
             mine.reason.find(of_other_.reason) == std::string::npos) {
    mine.reason += "; other side: " + of_other_.reason;
  }
  co_return mine;
}

namespace {

std::string describe(const error_code& ec) {
  return ec.message() + " (" + ec.category().name() + ' ' + std::to_string(ec.value()) + ')';
}

/// Whether queue pairs can be made. No check but one can be carried out without.
bool has_connections(session& s) {
  queue_pair qp(s.io);
  error_code ec;
  qp.open(s.pd, {}, ec);
  return ec != asio::error::operation_not_supported;
}

awaitable<void> run_both(session& s, check_function f, verdict& result) {
  verdict mine{verdict::kind::failed, {}};
  try {
    co_await f(s);
    mine.what = verdict::kind::passed;
  } catch (const absence& e) {
    mine = {verdict::kind::not_here, e.what()};
  } catch (const system_error& e) {
    mine.reason = describe(e.code());
    if (e.code() == asio::error::operation_not_supported && !has_connections(s))
      mine = {verdict::kind::not_here, "the device has no reliable connections"};
  } catch (const std::exception& e) {
    mine.reason = e.what();
  }
  result = co_await s.conclude(mine);
}

} // namespace

verdict run_side(session& s, check_function f) {
  verdict result{verdict::kind::failed, "ended without a verdict"};
  bool done = false;
  asio::co_spawn(s.io, run_both(s, f, result), [&](std::exception_ptr) { done = true; });
  while (!done && s.io.run_one() != 0)
    ;
  return result;
}

} // namespace trial
