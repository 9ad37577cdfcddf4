// SPDX-License-Identifier: BSL-1.0
#include "relay.hpp"

#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <stdexcept>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace soft::test {
namespace {

constexpr int patience = 60'000; // ms without any byte: longer than that of a party
constexpr std::size_t most = 64 * 1024;

// Catch's macros do not work in the relay's thread.
void require(bool holds, const char* what) {
  if (!holds)
    throw std::runtime_error(std::string("relay: ") + what);
}

int make_socket(const relay::options& o) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (o.segment != 0)
    setsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &o.segment, sizeof(o.segment));
  if (o.receive_buffer != 0)
    setsockopt(s, SOL_SOCKET, SO_RCVBUF, &o.receive_buffer, sizeof(o.receive_buffer));
  return s;
}

void prepare(int s) {
  const int yes = 1;
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  fcntl(s, F_SETFL, O_NONBLOCK);
}

// close(2) resets the connection.
void reset_at_close(int s) {
  const linger now{1, 0};
  setsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

bool is_temporary(int error) { return error == EAGAIN || error == EINTR; }

// Reads and drops bytes until both sides have ended the connection.
void drain(int a, int b, int stop) {
  std::array<std::byte, 4096> dropped;
  std::array<pollfd, 3> p{{{a, POLLIN, 0}, {b, POLLIN, 0}, {stop, POLLIN, 0}}};
  while (p[0].fd >= 0 || p[1].fd >= 0) {
    require(poll(p.data(), p.size(), patience) > 0, "a side does not close");
    if (p[2].revents != 0)
      return;
    for (std::size_t i = 0; i != 2; ++i) {
      if (p[i].revents == 0)
        continue;
      const ssize_t n = recv(p[i].fd, dropped.data(), dropped.size(), 0);
      if (n == 0 || (n < 0 && !is_temporary(errno)))
        p[i].fd = -1;
    }
  }
}

} // namespace

descriptor::~descriptor() { close(fd_); }

relay::relay(const std::string& port, const options& o)
    : options_(o),
      to_(static_cast<std::uint16_t>(std::stoi(port))),
      listener_(make_socket(o)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sockaddr_in a = local_address(0);
  socklen_t size = sizeof(a);
  REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof(a)) == 0);
  REQUIRE(::listen(listener_, 4) == 0);
  REQUIRE(getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &size) == 0);
  port_ = std::to_string(ntohs(a.sin_port));
}

relay::~relay() {
  if (!thread_.joinable())
    return;
  stopped_ = true;
  wake();
  thread_.join();
}

void relay::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_, &one, sizeof(one));
}

void relay::release(direction d) {
  held_[d] = false;
  wake();
}

void relay::start(const plan& p) {
  passed_ = {};
  thread_ = std::thread([this, p] {
    try {
      carry(p);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

std::array<relay::bytes, 2> relay::finish() {
  thread_.join();
  if (failure_)
    std::rethrow_exception(std::exchange(failure_, nullptr));
  return std::move(passed_);
}

// The bytes of one direction.
struct relay::flow {
  int from, to;
  bytes& passed;
  bytes waiting{};    // not yet taken by `to`
  bool ended = false; // `from` has closed, and `to` knows

  // False: a side has reset the connection.
  bool read(std::size_t limit) {
    const std::size_t before = waiting.size();
    waiting.resize(before + std::min(limit, most));
    const ssize_t n = recv(from, waiting.data() + before, waiting.size() - before, 0);
    waiting.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0)
      ended = shutdown(to, SHUT_WR) == 0;
    return n > 0 || (n == 0 && ended) || (n < 0 && is_temporary(errno));
  }
  bool write() {
    const ssize_t n = send(to, waiting.data(), waiting.size(), MSG_NOSIGNAL);
    if (n < 0)
      return is_temporary(errno);
    const auto end = waiting.begin() + n;
    passed.insert(passed.end(), waiting.begin(), end);
    waiting.erase(waiting.begin(), end);
    return true;
  }
};

void relay::carry(const plan& p) {
  std::array<pollfd, 2> first{{{listener_, POLLIN, 0}, {wake_, POLLIN, 0}}};
  require(poll(first.data(), first.size(), patience) > 0, "no connection comes");
  if (stopped_)
    return;
  const descriptor connector(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  require(connector >= 0, "accept");
  const descriptor listener(make_socket(options_));
  const sockaddr_in to = local_address(to_);
  require(connect(listener, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0, "connect");
  prepare(connector);
  prepare(listener);
  std::mt19937 sizes(p.pieces);
  std::array<flow, 2> flows{
      {{connector, listener, passed_[to_listener]}, {listener, connector, passed_[to_connector]}}};
  const auto left = [&](unsigned d) -> std::uint64_t { // before the loss
    const flow& f = flows[d];
    return p.lost && p.lost->of == d ? p.lost->after - f.passed.size() - f.waiting.size() : ~0ull;
  };
  const auto next_size = [&](unsigned d) -> std::size_t {
    std::size_t size = most;
    if (p.pieces != 0 && sizes() % 3 != 0)
      size = sizes() % 2 == 0 ? 1 : 1 + sizes() % 100;
    return static_cast<std::size_t>(std::min<std::uint64_t>(size, left(d)));
  };
  const auto is_lost = [&] {
    return p.lost && flows[p.lost->of].passed.size() == p.lost->after;
  };
  bool moves = true;
  while (moves && !is_lost() && !(flows[0].ended && flows[1].ended)) {
    std::array<pollfd, 3> of{{{connector, 0, 0}, {listener, 0, 0}, {wake_, POLLIN, 0}}};
    for (unsigned d = 0; d != 2; ++d) {
      if (!flows[d].waiting.empty())
        of[1 - d].events |= POLLOUT;
      else if (!flows[d].ended && !held_[d])
        of[d].events |= POLLIN;
    }
    for (pollfd& q : of)
      if (q.events == 0)
        q.fd = -1; // a reset is seen when its bytes may be read
    require(poll(of.data(), of.size(), patience) > 0, "nothing moves");
    if (stopped_)
      return;
    std::uint64_t count = 0;
    if (of[2].revents != 0) [[maybe_unused]]
      const auto taken = ::read(wake_, &count, sizeof(count));
    for (unsigned d = 0; d != 2 && moves; ++d) {
      if (of[d].revents != 0 && (of[d].events & POLLIN) != 0 && !held_[d])
        moves = flows[d].read(next_size(d));
      if (moves && !flows[d].waiting.empty())
        moves = flows[d].write();
      if (is_lost())
        break;
    }
  }
  if (is_lost() && p.lost->by == ending::close) {
    shutdown(connector, SHUT_WR);
    shutdown(listener, SHUT_WR);
    drain(connector, listener, wake_);
  }
  reset_at_close(connector); // leaves no port behind
  reset_at_close(listener);
}

} // namespace soft::test
