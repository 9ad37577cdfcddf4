// SPDX-License-Identifier: BSL-1.0
// peer listen ADDRESS SCENARIO [ARGUMENT...]
// peer connect ADDRESS PORT SCENARIO [ARGUMENT...]
// One side of a connection between two processes, on any device: soft/test/siw has the scenarios. A
// listener prints its port. Status 0: all went as the scenario says.
#include "peer.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <poll.h>
#include <sched.h>
#include <span>
#include <string_view>
#include <unistd.h>

namespace {

using namespace peer;
using arguments = std::span<char*>;

std::size_t number(arguments a, std::size_t i) {
  check(i < a.size(), "an argument is missing");
  return std::strtoul(a[i], nullptr, 10);
}
std::string_view word(arguments a, std::size_t i) {
  check(i < a.size(), "an argument is missing");
  return a[i];
}

// ---- the two ways to a connection

struct listener {
  rdma_event_channel* channel = nullptr;
  rdma_cm_id* id = nullptr;

  explicit listener(const char* address) {
    check((channel = rdma_create_event_channel()) != nullptr, "rdma_create_event_channel");
    require(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
    sockaddr_in own{};
    own.sin_family = AF_INET;
    check(inet_pton(AF_INET, address, &own.sin_addr) == 1, "the address is wrong");
    require(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&own)), "rdma_bind_addr");
    require(rdma_listen(id, 4), "rdma_listen");
    std::printf("port %u\n", unsigned(ntohs(rdma_get_src_port(id))));
    std::fflush(stdout);
  }
  ~listener() {
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
  }
  event request() {
    event e = next_event(channel);
    check(e.type == RDMA_CM_EVENT_CONNECT_REQUEST, "the listener has another event");
    return e;
  }
};

// Devices of InfiniBand's kind fill the field up with zeros.
void check_data(const std::vector<std::byte>& got, const std::vector<std::byte>& sent) {
  check(got.size() >= sent.size(), "private data is missing");
  check(std::equal(sent.begin(), sent.end(), got.begin()), "the private data differs");
  check(std::all_of(got.begin() + static_cast<std::ptrdiff_t>(sent.size()), got.end(),
                    [](std::byte b) { return b == std::byte{0}; }),
        "there is more private data than was sent");
}

void be_connected(side& s) {
  require(s.connect({}), "rdma_connect");
  s.expect(RDMA_CM_EVENT_ESTABLISHED);
}
void be_accepted(side& s) {
  s.accept({});
  s.expect(RDMA_CM_EVENT_ESTABLISHED);
}

// The connection ends by the other side: an event, and every posted receive ends.
void see_the_end(side& s, unsigned receives) {
  s.expect(RDMA_CM_EVENT_DISCONNECTED);
  rdma_disconnect(s.id()); // puts the queue pair of any device into the error state
  for (unsigned i = 0; i != receives; ++i)
    check(s.received().status == IBV_WC_WR_FLUSH_ERR, "a receive is not flushed");
}

// A message of the connecting side, and the answer. The connecting side must be the first (RFC
// 5044, section 7.1.2). It waits for the answer before it leaves: a listener on siw was seen to
// wait for ever if the connection ended at once.
void ask(side& s) {
  s.carry_out(IBV_WR_SEND, 0, 16);
  check(s.received().byte_len == 16, "the answer is not whole");
}
void answer(side& s) {
  check(s.received().byte_len == 16, "the message is not whole");
  s.carry_out(IBV_WR_SEND, 0, 16);
}

// The first message of both sides: where the memory of its sender is.
void say_memory(side& s) {
  const remote r = s.own();
  std::memcpy(s.memory() + 0, &r, sizeof(r));
  s.carry_out(IBV_WR_SEND, 0, sizeof(r));
}
remote told(side& s) {
  remote r{};
  std::memcpy(&r, s.inbox(), sizeof(r));
  return r;
}

// ---- scenarios

// data ASKED ANSWERED: so many bytes of private data with the request and the acceptance.
void data_listen(listener& l, arguments a) {
  const event e = l.request();
  check_data(e.data, pattern(number(a, 0), 1));
  side s(e.id, l.channel);
  s.receive(16);
  s.receive(16);
  s.accept(pattern(number(a, 1), 2));
  s.expect(RDMA_CM_EVENT_ESTABLISHED);
  answer(s);
  see_the_end(s, 1);
}
void data_connect(side& s, arguments a) {
  s.receive(16);
  require(s.connect(pattern(number(a, 0), 1)), "rdma_connect");
  const event e = s.expect(RDMA_CM_EVENT_ESTABLISHED);
  check_data(e.data, pattern(number(a, 1), 2));
  ask(s);
  require(rdma_disconnect(s.id()), "rdma_disconnect");
  s.expect(RDMA_CM_EVENT_DISCONNECTED);
}

// reject BYTES: the request is rejected with so many bytes of private data.
void reject_listen(listener& l, arguments a) {
  const event e = l.request();
  const auto data = pattern(number(a, 0), 3);
  require(rdma_reject(e.id, data.data(), static_cast<std::uint8_t>(data.size())), "rdma_reject");
  rdma_destroy_id(e.id);
}
void reject_connect(side& s, arguments a) {
  require(s.connect(pattern(20, 1)), "rdma_connect");
  check_data(s.expect(RDMA_CM_EVENT_REJECTED).data, pattern(number(a, 0), 3));
}

// refused: the port has no listener. siw reports that from rdma_connect, other devices by an event.
void refused_connect(side& s, arguments) {
  const int error = s.connect({});
  if (error == 0)
    s.expect(RDMA_CM_EVENT_REJECTED);
  else
    check(error == ECONNREFUSED, "rdma_connect fails for another reason");
}

// leave connect|listen: that side disconnects, or ends without a word, after one message.
void leave(side& s, bool leaves) {
  if (!leaves)
    return see_the_end(s, 1);
  require(rdma_disconnect(s.id()), "rdma_disconnect");
  s.expect(RDMA_CM_EVENT_DISCONNECTED);
}
void leave_listen(listener& l, arguments a) {
  side s(l.request().id, l.channel);
  s.receive(16);
  s.receive(16);
  be_accepted(s);
  answer(s);
  leave(s, word(a, 0) == "listen");
}
void leave_connect(side& s, arguments a) {
  s.receive(16);
  s.receive(16);
  be_connected(s);
  ask(s);
  leave(s, word(a, 0) == "connect");
}

// die connect|listen: that side is killed in the middle of a transfer to it. The other side learns
// of it by an event. It does not wait for the ends of its requests: siw does not report all of
// them.
void stream_until_the_end(side& s, remote to) {
  std::fill_n(s.memory(), 32 * 1024, std::byte{1});
  ibv_cq* const cq = s.id()->send_cq;
  require(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
  unsigned pending = 0;
  for (;;) {
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 1)
      --pending;
    while (pending != side::depth && s.post(IBV_WR_RDMA_WRITE, 0, 32 * 1024, to) == 0)
      ++pending;
    pollfd of[] = {{s.id()->channel->fd, POLLIN, 0}, {s.id()->send_cq_channel->fd, POLLIN, 0}};
    check(poll(of, 2, -1) > 0, "poll");
    if (of[0].revents != 0) {
      s.expect(RDMA_CM_EVENT_DISCONNECTED);
      return;
    }
    void* context = nullptr;
    ibv_cq* of_event = nullptr;
    require(ibv_get_cq_event(s.id()->send_cq_channel, &of_event, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(of_event, 1);
    require(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
  }
}
void die_receiving(side& s) {
  say_memory(s);
  std::fill_n(s.memory(), sizeof(remote), std::byte{0});
  for (const volatile std::byte* const first = s.memory(); *first == std::byte{0};)
    sched_yield();
  kill(getpid(), SIGKILL);
}
void die_listen(listener& l, arguments a) {
  side s(l.request().id, l.channel);
  s.receive(sizeof(remote));
  be_accepted(s);
  check(s.received().byte_len == sizeof(remote), "the first message is another one");
  if (word(a, 0) == "listen")
    die_receiving(s);
  else
    stream_until_the_end(s, told(s));
}
void die_connect(side& s, arguments a) {
  s.receive(sizeof(remote));
  be_connected(s);
  if (word(a, 0) == "connect")
    return die_receiving(s);
  say_memory(s);
  check(s.received().byte_len == sizeof(remote), "the answer is another one");
  stream_until_the_end(s, told(s));
}

// transfer: both sides write, read and send, with messages of no bytes among them.
constexpr std::size_t mine = 0, theirs = 64 * 1024, copies = 128 * 1024, large = 50001;
void put(side& s, std::size_t at, const std::vector<std::byte>& bytes) {
  std::copy(bytes.begin(), bytes.end(), s.memory() + at);
}
void check_memory(const std::byte* at, const std::vector<std::byte>& bytes, const char* what) {
  check(std::equal(bytes.begin(), bytes.end(), at), what);
}
void active_part(side& s, remote peer, unsigned seed) {
  put(s, mine, pattern(large, seed));
  s.carry_out(IBV_WR_RDMA_WRITE, mine, large, {peer.address + theirs + 3, peer.key});
  s.carry_out(IBV_WR_RDMA_WRITE, mine, 0, {peer.address, peer.key});
  s.carry_out(IBV_WR_RDMA_READ, copies, 0, {peer.address, peer.key});
  // As many READs as may be outstanding, of different sizes: the answers come in their order.
  const std::size_t sizes[] = {large, 1, 4096, 10};
  std::size_t at = copies;
  for (const std::size_t size : sizes) {
    require(s.post(IBV_WR_RDMA_READ, at, size, {peer.address + theirs + 3, peer.key}),
            "ibv_post_send");
    at += size;
  }
  at = copies;
  for (const std::size_t size : sizes) {
    check(s.sent().status == IBV_WC_SUCCESS, "a READ fails");
    check_memory(s.memory() + at, pattern(size, seed), "a READ has other bytes");
    at += size;
  }
  s.carry_out(IBV_WR_SEND, mine, 0);
  s.carry_out(IBV_WR_SEND, mine, 33333);
}
void passive_part(side& s, unsigned seed) {
  check(s.received().byte_len == 0, "a message of no bytes has bytes");
  check(s.received().byte_len == 33333, "a message has another size");
  check_memory(s.inbox() + 128, pattern(33333, seed), "a message has other bytes");
  check_memory(s.memory() + theirs + 3, pattern(large, seed), "a WRITE has other bytes");
}
void prepare_transfer(side& s) {
  s.receive(sizeof(remote));
  s.receive(64, 64);
  s.receive(40000, 128);
}
void transfer_listen(listener& l, arguments) {
  side s(l.request().id, l.channel);
  prepare_transfer(s);
  be_accepted(s);
  check(s.received().byte_len == sizeof(remote), "the first message is another one");
  const remote peer = told(s);
  say_memory(s);
  passive_part(s, 5);
  active_part(s, peer, 9);
  see_the_end(s, 0);
}
void transfer_connect(side& s, arguments) {
  prepare_transfer(s);
  be_connected(s);
  say_memory(s);
  check(s.received().byte_len == sizeof(remote), "the first message is another one");
  active_part(s, told(s), 5);
  passive_part(s, 9);
  require(rdma_disconnect(s.id()), "rdma_disconnect");
  s.expect(RDMA_CM_EVENT_DISCONNECTED);
}

// denied write|read WHAT: a request about memory that is not the requester's ends the connection,
// and a READ fails.
void denied_listen(listener& l, arguments) {
  side s(l.request().id, l.channel);
  s.receive(16);
  be_accepted(s);
  check(s.received().byte_len == 16, "the message is not whole");
  s.receive(16);
  say_memory(s);
  see_the_end(s, 1);
}
void denied_connect(side& s, arguments a) {
  s.receive(sizeof(remote));
  s.receive(16);
  be_connected(s);
  s.carry_out(IBV_WR_SEND, 0, 16);
  check(s.received().byte_len == sizeof(remote), "the first message is another one");
  remote peer = told(s);
  if (word(a, 1) == "key")
    peer.key ^= 0xff00;
  else
    peer.address += side::memory_size - 8;
  const bool reads = word(a, 0) == "read";
  require(s.post(reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 64, peer), "ibv_post_send");
  if (reads)
    check(s.sent().status != IBV_WC_SUCCESS, "a READ of other memory succeeds");
  see_the_end(s, 1);
}

// late: the second message comes before its receive is posted.
void late_listen(listener& l, arguments) {
  side s(l.request().id, l.channel);
  s.receive(16);
  be_accepted(s);
  check(s.received().byte_len == 16, "the message is not whole");
  s.receive(4096); // of the second one, which came with the first
  check(s.received().byte_len == 4096, "the late message is not whole");
  see_the_end(s, 0);
}
void late_connect(side& s, arguments) {
  be_connected(s);
  require(s.post(IBV_WR_SEND, 0, 16), "ibv_post_send");
  require(s.post(IBV_WR_SEND, 0, 4096), "ibv_post_send");
  check(s.sent().status == IBV_WC_SUCCESS, "a SEND fails");
  check(s.sent().status == IBV_WC_SUCCESS, "a SEND fails");
  require(rdma_disconnect(s.id()), "rdma_disconnect");
  s.expect(RDMA_CM_EVENT_DISCONNECTED);
}

// lost cut|waiting|stopped: the listener's process stops. A line on its standard input has the
// connecting side read its memory. The script takes the cable away before (cut), or while the READ
// waits for its answer (waiting); or it lets the process go on (stopped).
void lost_listen(listener& l, arguments) {
  side s(l.request().id, l.channel);
  s.receive(16);
  be_accepted(s);
  check(s.received().byte_len == 16, "the message is not whole");
  say_memory(s);
  std::printf("stops %d\n", int(getpid()));
  std::fflush(stdout);
  raise(SIGSTOP);
  see_the_end(s, 0);
}
void lost_connect(side& s, arguments a) {
  s.receive(sizeof(remote));
  be_connected(s);
  s.carry_out(IBV_WR_SEND, 0, 16);
  check(s.received().byte_len == sizeof(remote), "the first message is another one");
  std::getchar();
  require(s.post(IBV_WR_RDMA_READ, 0, 64, told(s)), "ibv_post_send");
  const ibv_wc_status status = s.sent().status;
  if (word(a, 0) == "stopped") {
    check(status == IBV_WC_SUCCESS, "a READ of a process that was stopped fails");
    require(rdma_disconnect(s.id()), "rdma_disconnect");
  } else {
    check(status == IBV_WC_RETRY_EXC_ERR, "a READ of a lost host ends in another way");
  }
  s.expect(RDMA_CM_EVENT_DISCONNECTED);
}

struct scenario {
  void (*listen)(listener&, arguments);
  void (*connect)(side&, arguments);
};
const std::map<std::string_view, scenario> scenarios = {
    {"data", {data_listen, data_connect}},       {"reject", {reject_listen, reject_connect}},
    {"refused", {nullptr, refused_connect}},     {"leave", {leave_listen, leave_connect}},
    {"die", {die_listen, die_connect}},          {"transfer", {transfer_listen, transfer_connect}},
    {"denied", {denied_listen, denied_connect}}, {"late", {late_listen, late_connect}},
    {"lost", {lost_listen, lost_connect}},
};

} // namespace

int main(int argc, char** argv) {
  const arguments a(argv, static_cast<std::size_t>(argc));
  const bool listens = word(a, 1) == "listen";
  const std::size_t at = listens ? 3 : 4;
  const auto found = scenarios.find(word(a, at));
  check(found != scenarios.end(), "there is no such scenario");
  if (listens) {
    listener l(argv[2]);
    found->second.listen(l, a.subspan(at + 1));
  } else {
    side s(argv[2], argv[3]);
    found->second.connect(s, a.subspan(at + 1));
  }
}
