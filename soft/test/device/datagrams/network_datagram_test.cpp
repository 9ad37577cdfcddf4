// SPDX-License-Identifier: BSL-1.0
// Datagrams to and from other machines. Each test has a network namespace, where raw sockets are
// the other machine.
#include "datagrams.hpp"
#include "iwarp/big_endian.hpp"
#include "roce/invariant_crc.hpp"
#include "roce/service_resolution.hpp"
#include "support/other_machine.hpp"
#include "support/processes.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace soft;
using namespace soft::test;

namespace {

using bytes = other_machine::bytes;

// Addresses of this machine and of the other one.
ibv_gid own(bool v6) { return gid(v6 ? "2001:db8::2" : "::ffff:192.0.2.2"); }
ibv_gid theirs(bool v6) { return gid(v6 ? "2001:db8:1::7" : "::ffff:198.51.100.7"); }

roce::datagram to(const datagram_side& d, bool v6 = false) {
  roce::datagram made;
  made.way.source = theirs(v6);
  made.way.destination = own(v6);
  made.way.traffic_class = 0x2a;
  made.way.hop_limit = 9;
  made.from = 0x123456;
  made.to = d.number();
  made.q_key = test_q_key;
  made.payload = 8;
  return made;
}

// The way from an address of this machine to the other one.
owned_ah way_there(datagram_side& d, bool v6, std::uint8_t hop_limit) {
  ibv_ah_attr a{};
  a.is_global = 1;
  a.port_num = 1;
  a.grh.dgid = theirs(v6);
  a.grh.traffic_class = 0x2a;
  a.grh.hop_limit = hop_limit;
  for (ibv_gid g{}; std::memcmp(g.raw, own(v6).raw, sizeof(g.raw)) != 0; ++a.grh.sgid_index)
    REQUIRE(ibv_query_gid(d.s.qp->context, 1, a.grh.sgid_index, &g) == 0);
  --a.grh.sgid_index;
  owned_ah made(ibv_create_ah(d.s.pd.get(), &a));
  REQUIRE(made);
  return made;
}

} // namespace

TEST_CASE("child: a datagram of another machine", "[.child]") {
  enter_namespace();
  const auto context = open_soft();
  for (const bool v6 : {false, true}) {
    datagram_side d(*context);
    other_machine other(v6);
    d.receive(1);
    roce::datagram sent = to(d, v6);
    sent.immediate = htonl(77);
    other.send(sent, std::byte{7});
    ibv_wc wc = d.s.completion();
    CHECK(wc.byte_len == sizeof(ibv_grh) + 8);
    CHECK(wc.src_qp == 0x123456);
    CHECK((wc.wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM)) == (IBV_WC_GRH | IBV_WC_WITH_IMM));
    CHECK(wc.imm_data == htonl(77));
    CHECK(d.first_byte(1) == std::byte{7});
    ibv_ah_attr a{};
    REQUIRE(ibv_init_ah_from_wc(context.get(), 1, &wc, d.header(1), &a) == 0);
    CHECK(std::memcmp(a.grh.dgid.raw, theirs(v6).raw, 16) == 0);
    CHECK(a.grh.traffic_class == 0x2a);
    CHECK(a.grh.hop_limit == 9);
    ibv_gid g{};
    REQUIRE(ibv_query_gid(context.get(), 1, a.grh.sgid_index, &g) == 0);
    CHECK(std::memcmp(g.raw, own(v6).raw, 16) == 0);
  }
}

TEST_CASE("A datagram of another machine comes with the header of its network layer") {
  check_in_namespace("child: a datagram of another machine");
}

TEST_CASE("child: wrong datagrams of another machine", "[.child]") {
  enter_namespace();
  const auto context = open_soft();
  for (const bool v6 : {false, true}) {
    datagram_side d(*context);
    other_machine other(v6);
    d.receive(1);
    const roce::datagram right = to(d, v6);
    roce::datagram of_here = right, of_loopback = right, wrong_key = right, unknown = right,
                   in_no_block = right, too_long = right;
    of_here.way.source = own(v6);
    of_loopback.way.source = gid(v6 ? "::1" : "::ffff:127.0.0.5");
    wrong_key.q_key ^= 1;
    unknown.to ^= 0x800;
    in_no_block.to ^= 0x800000;
    too_long.payload = 300;
    for (const auto& wrong : {of_here, of_loopback, wrong_key, unknown, in_no_block, too_long})
      other.send(wrong, std::byte{1});
    other.send(right.way, 0xc000, roce::udp_port, {});
    other.send(right.way, 0xc000, roce::udp_port, bytes(23));
    other_machine::changes c;
    // SEND of a connection
    c.before_crc = [](bytes& b) {
      b[40] = std::byte{0x04};
    };
    other.send(right, std::byte{1}, c);
    c.before_crc = nullptr;
    c.after_crc = [](bytes& b) {
      b.pop_back();
    };
    other.send(right, std::byte{1}, c);
    c.after_crc = [](bytes& b) {
      b.back() ^= std::byte{1};
    };
    if (v6)
      other.send(right, std::byte{1}, c);
    other.send(right, std::byte{7});
    CHECK(d.s.completion().byte_len == sizeof(ibv_grh) + 8);
    CHECK(d.first_byte(1) == std::byte{7});
    CHECK(d.s.is_quiet());
  }
}

TEST_CASE("Datagrams of another machine with any error are dropped") {
  check_in_namespace("child: wrong datagrams of another machine");
}

TEST_CASE("child: a datagram to another machine", "[.child]") {
  enter_namespace();
  const auto context = open_soft();
  datagram_side d(*context);
  for (const bool v6 : {false, true})
    for (const std::uint8_t hop_limit : {0, 5}) {
      other_machine other(v6);
      d.way = way_there(d, v6, hop_limit);
      REQUIRE(d.send(7, 0xabcdef, test_q_key, IBV_WR_SEND_WITH_IMM) == 0);
      CHECK(d.s.completion().status == IBV_WC_SUCCESS);
      const bytes packet = other.receive();
      const std::size_t ip = v6 ? 40 : 20;
      REQUIRE(packet.size() == ip + 8 + 24 + 8 + 4);
      const std::uint8_t left = std::to_integer<std::uint8_t>(packet[v6 ? 7 : 8]);
      CHECK((hop_limit == 0 ? left > 5 : left == 5));
      if (!v6) {
        CHECK(packet[1] == std::byte{0x2a});
        CHECK(iwarp::get_big_endian<std::uint32_t>(packet.data() + 4) ==
              0x4000); // identification 0
      } else {
        CHECK(iwarp::get_big_endian<std::uint32_t>(packet.data()) >> 20 == 0x62a);
      }
      const std::byte* const udp = packet.data() + ip;
      CHECK(iwarp::get_big_endian<std::uint16_t>(udp + 2) == 4791);
      // Without the UDP header the packet is a datagram between processes, and its CRC.
      bytes inner(40 + packet.size() - ip - 8);
      std::copy_n(packet.data(), ip, inner.data() + 40 - ip);
      std::copy_n(udp + 8, inner.size() - 40, inner.data() + 40);
      const std::span<const std::byte> whole(inner.data(), inner.size() - 4);
      roce::invariant_crc crc(whole.first<52>(), iwarp::get_big_endian<std::uint16_t>(udp));
      crc.update(whole.subspan(52));
      CHECK(std::ranges::equal(crc.encode(), std::span(inner).last<4>()));
      std::span<const std::byte> payload;
      const auto r = roce::decode(whole, payload);
      REQUIRE(r);
      CHECK(r->from == d.number());
      CHECK(r->to == 0xabcdef);
      CHECK(r->q_key == test_q_key);
      CHECK(r->immediate == htonl(7));
      CHECK(payload.size() == 8);
      CHECK(payload[0] == std::byte{7});
      CHECK(std::memcmp(r->way.source.raw, own(v6).raw, 16) == 0);
      CHECK(std::memcmp(r->way.destination.raw, theirs(v6).raw, 16) == 0);
    }
}

TEST_CASE("A datagram to another machine is a packet of RoCE v2") {
  check_in_namespace("child: a datagram to another machine");
}

TEST_CASE("child: a datagram that is larger than the path's MTU", "[.child]") {
  enter_namespace();
  const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq small{};
  std::strcpy(small.ifr_name, "lo");
  small.ifr_mtu = 1500;
  REQUIRE(ioctl(s, SIOCSIFMTU, &small) == 0);
  close(s);
  const auto context = open_soft();
  datagram_side d(*context);
  for (const bool v6 : {false, true}) {
    other_machine other(v6);
    d.way = way_there(d, v6, 5);
    const auto send = [&](std::uint32_t size) {
      ibv_sge e = d.s.element(0, size);
      ibv_send_wr wr = side::request(1, IBV_WR_SEND, e), *bad = nullptr;
      wr.wr.ud.ah = d.way.get();
      REQUIRE(ibv_post_send(d.s.qp.get(), &wr, &bad) == 0);
      CHECK(d.s.completion().status == IBV_WC_SUCCESS);
    };
    const std::uint32_t ip = v6 ? 40 : 20, most = 1500 - ip - 8 - 20 - 4;
    send(4096);
    send(most + 4);
    send(most);
    const bytes packet = other.receive();
    CHECK(packet.size() == 1500);
    CHECK(iwarp::get_big_endian<std::uint16_t>(packet.data() + ip + 4) == 1500 - ip); // of UDP
  }
}

TEST_CASE("A datagram that is larger than the path's MTU is lost, and is no failure") {
  check_in_namespace("child: a datagram that is larger than the path's MTU");
}

namespace {

constexpr int rounds = 32; // different source ports, so that the kernel gives each process some

// The sockets of this process that have the port of RoCE v2.
int sockets_at_port() {
  int n = 0;
  for (int fd = 0; fd != 256; ++fd) {
    sockaddr_in6 a{};
    socklen_t size = sizeof(a);
    n += getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0 &&
         (a.sin6_family == AF_INET || a.sin6_family == AF_INET6) &&
         a.sin6_port == htons(roce::udp_port);
  }
  return n;
}

} // namespace

TEST_CASE("child: the second process that has the port", "[.child]") {
  const auto context = open_soft();
  datagram_side d(*context);
  CHECK(sockets_at_port() == 2);
  trade(parent_channel, d.number());
  for (int i = 0; i != rounds; ++i) {
    d.receive(1);
    meet(parent_channel);
    CHECK(d.s.completion().status == IBV_WC_SUCCESS);
    CHECK(d.first_byte(1) == static_cast<std::byte>(i));
    meet(parent_channel);
  }
  CHECK(d.s.is_quiet());
}

TEST_CASE("child: two processes that have the port", "[.child]") {
  enter_namespace();
  const auto context = open_soft();
  datagram_side d(*context);
  child second("child: the second process that has the port", {});
  const auto number = trade(second.channel(), d.number());
  other_machine other;
  for (int i = 0; i != rounds; ++i) {
    other_machine::changes c;
    c.source_port = static_cast<std::uint16_t>(0xc000 + i);
    roce::datagram sent = to(d);
    d.receive(1);
    other.send(sent, static_cast<std::byte>(i), c);
    CHECK(d.s.completion().status == IBV_WC_SUCCESS);
    CHECK(d.first_byte(1) == static_cast<std::byte>(i));
    sent.to = number ^ 0x800; // no queue pair of that process
    other.send(sent, std::byte{0xff}, c);
    meet(second.channel());
    sent.to = number;
    other.send(sent, static_cast<std::byte>(i), c);
    meet(second.channel());
  }
  CHECK(d.s.is_quiet());
  CHECK(second.wait() == 0);
}

TEST_CASE("Processes that share the port pass on the datagrams of each other") {
  check_in_namespace("child: two processes that have the port");
}

TEST_CASE("child: the port is not free", "[.child]") {
  enter_namespace();
  const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(roce::udp_port);
  REQUIRE(bind(s, reinterpret_cast<sockaddr*>(&a), sizeof(a)) == 0);
  const auto context = open_soft();
  datagram_side d(*context);
  REQUIRE(d.send(5, d.number()) == 0);
  CHECK(d.s.completion().status == IBV_WC_SUCCESS); // lost: there is no receive
  d.receive(1);
  REQUIRE(d.send(6, d.number()) == 0);
  for (int i = 0; i != 2; ++i)
    CHECK(d.s.completion().status == IBV_WC_SUCCESS);
  CHECK(d.first_byte(1) == std::byte{6});
  close(s);
  const datagram_side next(*context); // takes the port for all queue pairs of the process
  other_machine other;
  d.receive(1);
  other.send(to(d), std::byte{7});
  CHECK(d.s.completion().status == IBV_WC_SUCCESS);
  CHECK(d.first_byte(1) == std::byte{7});
}

TEST_CASE("A port that is not free keeps away the datagrams of other machines alone") {
  check_in_namespace("child: the port is not free");
}

TEST_CASE("child: a process that forks", "[.child]") {
  enter_namespace();
  const auto context = open_soft();
  const datagram_side d(*context);
  CHECK(sockets_at_port() == 2);
  const pid_t pid = fork();
  if (pid == 0)
    _exit(sockets_at_port());
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  CHECK(sockets_at_port() == 2);
}

TEST_CASE("A child after fork does not keep its parent's sockets at the port") {
  check_in_namespace("child: a process that forks");
}

TEST_CASE("child: a request for datagrams of another machine", "[.child]") {
  enter_namespace();
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* listener = nullptr;
  REQUIRE(rdma_create_id(channel, &listener, nullptr, RDMA_PS_UDP) == 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  REQUIRE(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&a)) == 0);
  REQUIRE(rdma_listen(listener, 4) == 0);
  const std::uint16_t port = ntohs(rdma_get_src_port(listener));
  roce::resolution_request request;
  request.transaction = 77;
  request.id = 78;
  request.service = roce::service_of(port);
  request.source_port = 1234;
  request.source = theirs(false);
  request.destination = own(false);
  other_machine other;
  const roce::route way{
      .source = request.source, .destination = request.destination, .hop_limit = 9};
  other.send(way, 1234, port, encode(request));
  rdma_cm_event* e = nullptr;
  REQUIRE(rdma_get_cm_event(channel, &e) == 0);
  CHECK(e->event == RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* const got = e->id;
  rdma_ack_cm_event(e);
  rdma_conn_param p{};
  p.qp_num = 5;
  REQUIRE(rdma_accept(got, &p) == 0);
  const bytes packet = other.receive();
  const auto reply = roce::decode_reply(std::span(packet).subspan(28));
  REQUIRE(reply);
  CHECK(reply->transaction == 77);
  CHECK(reply->status == 0);
  CHECK(reply->qp_num == 5);
  rdma_destroy_id(got);
  rdma_destroy_id(listener);
  rdma_destroy_event_channel(channel);
}

TEST_CASE("A request for datagrams of another machine is answered") {
  check_in_namespace("child: a request for datagrams of another machine");
}
