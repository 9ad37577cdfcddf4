// SPDX-License-Identifier: BSL-1.0
// Peers of iWARP that begin a connection and stay silent, and connections for which there is no
// room.
#include "support/cm_pair.hpp"
#include "support/raw_connection.hpp"

#include "iwarp/mpa_negotiation.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <deque>
#include <mutex>
#include <sys/socket.h>
#include <sys/syscall.h>

using namespace soft::test;
using namespace soft::iwarp;
using namespace std::chrono_literals;

namespace {

// Whether the process has no descriptor left for a connection, and when it tried to get one.
std::atomic<bool> no_descriptor{false};
std::mutex tries_mutex;
std::vector<clock::time_point> tries;

// Waits for the end of the connection. Bytes that came after it reset the connection.
bool is_closed(const raw_peer& p) {
  std::byte b;
  const ssize_t n = recv(p.socket(), &b, 1, 0);
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

// The call that was to connect `e` has ended, because the peer did not answer in time.
void check_unreachable(int result, const endpoint& e) {
  const int error = errno;
  CHECK(result == -1);
  CHECK(error == ETIMEDOUT);
  REQUIRE(e.id->event != nullptr);
  CHECK(e.id->event->event == RDMA_CM_EVENT_UNREACHABLE);
  CHECK(e.id->event->status == -ETIMEDOUT);
}

std::size_t count_tries() {
  const std::lock_guard lock(tries_mutex);
  return tries.size();
}

} // namespace

// In place of the C library's, for the device, too.
extern "C" int accept4(int socket, sockaddr* from, socklen_t* size, int flags) {
  if (!no_descriptor)
    return static_cast<int>(syscall(SYS_accept4, socket, from, size, flags));
  const std::lock_guard lock(tries_mutex);
  tries.push_back(clock::now());
  errno = EMFILE;
  return -1;
}

TEST_CASE("A request that gets no answer ends as unreachable, and closes its connection") {
  const with_settings set("answer=50ms");
  endpoint e;
  bool ended = false;
  errno = 0;
  const auto serve = [&](raw_peer& peer) {
    peer.start(false);
    ended = peer.at_end();
  };
  check_unreachable(connect_to(serve, e), e);
  CHECK(ended);
}

TEST_CASE("A request to a host that does not take the connection ends as unreachable") {
  const auto [listening, port] = listen_raw();
  REQUIRE(::listen(listening, 0) == 0); // room for one, and the kernel drops the next
  const raw_peer only(port);
  const with_settings set("answer=50ms");
  endpoint e;
  resolve(e, port);
  errno = 0;
  check_unreachable(connect(e), e);
  close(listening);
}

TEST_CASE("A connection without its first message ends as unreachable for its acceptor") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  raw_peer peer(port);
  start_options o;
  o.peer_to_peer = true;
  peer.send(make_request(o));
  endpoint e;
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  e.make_queue_pair();
  const with_settings set("answer=50ms");
  errno = 0;
  check_unreachable(accept(e), e);
  CHECK_FALSE(peer.start(true).rejected);
  CHECK(peer.at_end());
  CHECK(state_of(*e.id->qp) == IBV_QPS_ERR);
}

TEST_CASE("A request that no id of this process answers ends as unreachable") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  const with_settings set("answer=50ms");
  endpoint e;
  resolve(e, port);
  errno = 0;
  check_unreachable(connect(e), e);
  endpoint late;
  REQUIRE(rdma_get_request(listener.id, &late.id) == 0);
  CHECK(accept(late) == -1); // it was rejected
  CHECK(errno == EINVAL);
}

TEST_CASE("An acceptance that an id of this process does not confirm ends as unreachable") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  cm_end client; // without a queue pair, so that the library does not confirm
  client.resolve(local_address(static_cast<std::uint16_t>(std::stoi(port))));
  rdma_conn_param p{};
  REQUIRE(rdma_connect(client.id, &p) == 0);
  endpoint e;
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  e.make_queue_pair();
  const with_settings set("answer=50ms");
  errno = 0;
  check_unreachable(accept(e), e);
  client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
  client.expect(RDMA_CM_EVENT_REJECTED);
}

TEST_CASE("A connection that sends no whole request is closed") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  const auto request = encode(request_of());
  with_settings set("answer=50ms");
  for (const std::size_t sent : {std::size_t{0}, std::size_t{10}, request.view().size() - 1}) {
    raw_peer peer(port);
    peer.send(request.view().first(sent));
    CHECK(is_closed(peer));
  }
  set.replace("");
  raw_peer peer(port);
  peer.send(request.view());
  endpoint e;
  CHECK(rdma_get_request(listener.id, &e.id) == 0);
}

TEST_CASE("A listener serves a request although many connections are silent") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  constexpr int most = 128;
  const auto began = clock::now();
  std::deque<raw_peer> silent;
  for (int i = 0; i < most + 2; ++i)
    silent.emplace_back(port);
  raw_peer peer(port);
  peer.send(request_of());
  endpoint e;
  REQUIRE(rdma_get_request(listener.id, &e.id) == 0);
  for (std::size_t i = 0; i < 3; ++i) // the oldest
    CHECK(silent[i].at_end());
  CHECK(clock::now() - began >= 100ms); // a request may be on its way
}

TEST_CASE("A listener without a descriptor for a connection waits before it tries again") {
  const auto [id, port] = listen();
  const endpoint listener(id);
  no_descriptor = true;
  raw_peer peer(port);
  peer.send(request_of());
  while (count_tries() < 3)
    std::this_thread::yield();
  no_descriptor = false;
  endpoint e;
  CHECK(rdma_get_request(listener.id, &e.id) == 0);
  const std::lock_guard lock(tries_mutex);
  CHECK(tries[2] - tries[0] >= 200ms);
}
