// SPDX-License-Identifier: BSL-1.0
// Datagrams of a process that keeps no rules.
#include "datagrams.hpp"
#include "roce/datagram.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

using namespace soft;
using namespace soft::test;

namespace {

using bytes = std::vector<std::byte>;

/// A socket whose datagrams reach the process of a queue pair.
class forger {
public:
  explicit forger(std::uint32_t number) : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    const int n = std::snprintf(to.sun_path + 1, sizeof(to.sun_path) - 1,
                                "asio_rdma_soft/%u/datagrams", number >> 12);
    const std::size_t size = offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&to), static_cast<socklen_t>(size)) == 0);
  }
  ~forger() { close(socket_); }
  void send(const bytes& b) {
    REQUIRE(::send(socket_, b.data(), b.size(), 0) == static_cast<ssize_t>(b.size()));
  }

private:
  const int socket_;
};

// Between two addresses of IPv4, with 8 bytes of payload.
roce::datagram to(const datagram_side& d) {
  roce::datagram made;
  for (ibv_gid* const g : {&made.way.source, &made.way.destination}) {
    g->raw[10] = g->raw[11] = 0xff;
    g->raw[12] = 127;
    g->raw[15] = 1;
  }
  made.from = 1;
  made.to = d.number();
  made.q_key = test_q_key;
  made.payload = 8;
  return made;
}

bytes whole(const roce::datagram& d, std::byte fill = std::byte{1}) {
  const auto frame = encode(d);
  bytes all(frame.before().begin(), frame.before().end());
  all.resize(all.size() + d.payload, fill);
  all.resize(all.size() + frame.padding);
  return all;
}

} // namespace

TEST_CASE("A forged datagram that is right is delivered") {
  const auto context = open_soft();
  datagram_side d(*context);
  forger f(d.number());
  d.receive(1);
  f.send(whole(to(d), std::byte{7}));
  const ibv_wc wc = d.s.completion();
  CHECK(wc.byte_len == sizeof(ibv_grh) + 8);
  CHECK(wc.src_qp == 1);
  CHECK(d.first_byte(1) == std::byte{7});
}

TEST_CASE("A datagram of another machine that a process passes on is delivered") {
  const auto context = open_soft();
  datagram_side d(*context);
  forger f(d.number());
  d.receive(1);
  auto passed_on = to(d);
  passed_on.way.source.raw[12] = 203;
  f.send(whole(passed_on, std::byte{7}));
  ibv_wc wc = d.s.completion();
  CHECK(d.first_byte(1) == std::byte{7});
  ibv_ah_attr a{};
  REQUIRE(ibv_init_ah_from_wc(context.get(), 1, &wc, d.header(1), &a) == 0);
  CHECK(a.grh.dgid.raw[12] == 203);
}

TEST_CASE("Forged datagrams with any error are dropped") {
  const auto context = open_soft();
  datagram_side d(*context);
  const side connected(*context);
  forger f(d.number());
  d.receive(1);
  auto elsewhere = to(d), unknown = to(d), wrong_key = to(d), wrong_type = to(d), too_long = to(d);
  elsewhere.way.destination.raw[12] = 203;
  unknown.to ^= 0x800;
  wrong_key.q_key ^= 1;
  wrong_type.to = connected.qp->qp_num;
  too_long.payload = 300;
  for (const auto& wrong : {elsewhere, unknown, wrong_key, wrong_type, too_long})
    f.send(whole(wrong));
  const bytes right = whole(to(d));
  f.send({});
  f.send(bytes(70000));
  for (std::size_t size = 1; size < right.size(); ++size)
    f.send({right.begin(), right.begin() + static_cast<std::ptrdiff_t>(size)});
  for (std::size_t bit = 0; bit != 8 * 40; ++bit) { // of the network header
    bytes changed = right;
    changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    f.send(changed);
  }
  f.send(whole(to(d), std::byte{7}));
  CHECK(d.s.completion().status == IBV_WC_SUCCESS);
  CHECK(d.first_byte(1) == std::byte{7});
  CHECK(d.s.is_quiet());
  CHECK_FALSE(has_event(*context));
}

TEST_CASE("Datagrams that are changed at random change nothing but the receives they are for") {
  const auto context = open_soft();
  datagram_side d(*context);
  forger f(d.number());
  const bytes right = whole(to(d));
  std::minstd_rand random(11);
  for (int round = 0; round < 2000; ++round) {
    bytes changed = right;
    for (unsigned n = 1 + random() % 3; n != 0; --n)
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    f.send(changed);
  }
  for (;;) { // those that are right find no receive, until the last one
    d.receive(1);
    f.send(whole(to(d), std::byte{7}));
    CHECK(d.s.completion().status == IBV_WC_SUCCESS);
    if (d.first_byte(1) == std::byte{7})
      break;
  }
  CHECK(std::all_of(d.s.memory.begin() + 512, d.s.memory.end(),
                    [](std::byte b) { return b == std::byte{0}; }));
}
