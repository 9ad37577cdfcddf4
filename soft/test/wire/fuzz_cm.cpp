// SPDX-License-Identifier: BSL-1.0
#include "fuzz_cm.hpp"

#include "asio_rdma_soft.h"
#include "fuzz_input.hpp"
#include "fuzz_peer.hpp"
#include "iwarp/ddp.hpp"
#include "iwarp/mpa_negotiation.hpp"
#include "iwarp/mpa_start.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <span>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace soft::test {
namespace {

using iwarp::start_frame;

constexpr std::size_t most_private = 255; // bytes that an event tells
constexpr std::uint32_t receives = 16;    // more than the peer has messages
constexpr std::size_t most_later = 255;   // bytes of the peer after its start frame

cm_reached& so_far() {
  static cm_reached r;
  return r;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

// ---- the peer

/// By TCP.
class peer : public fuzz_peer {
public:
  explicit peer(int socket) : fuzz_peer(socket) {
    const int at_once = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  }
  static int connected_to(std::uint16_t port) {
    const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in to = loopback(port);
    const auto* const address = reinterpret_cast<const sockaddr*>(&to);
    require(uninterrupted([&] { return connect(s, address, sizeof(to)); }) == 0, "connect");
    return s;
  }
};

start_frame next_frame(reader& in, bool reply) {
  start_frame f;
  const unsigned flags = in.byte();
  f.reply = reply != ((flags & 0xc0) == 0xc0);
  f.rejected = f.reply && (flags & 7) == 7;
  f.markers = (flags & 0x38) == 0x38;
  f.crc = (flags & 1) != 0;
  f.enhanced = (flags & 2) != 0;
  f.revision = f.enhanced ? 2 : static_cast<std::uint8_t>(flags & 4 ? in.byte() : 1);
  if (f.enhanced) {
    for (std::uint16_t* const depth : {&f.ird, &f.ord}) {
      const unsigned low = in.byte();
      *depth = static_cast<std::uint16_t>(low + ((in.byte() & 0x3f) << 8));
    }
    const unsigned mode = in.byte();
    f.peer_to_peer = (mode & 1) != 0;
    f.rtr = static_cast<iwarp::rtr_kinds>(mode >> 1 & 7);
  }
  const std::size_t n = std::min<std::size_t>(in.byte() * 2, f.max_private_data());
  bytes data = in.take(std::min<std::size_t>(n, 32));
  data.resize(n, std::byte{0x5a});
  require(f.set_private_data(data), "private data");
  return f;
}

iwarp::start_options options(reader& in) {
  iwarp::start_options o;
  const unsigned flags = in.byte();
  o.crc = (flags & 1) != 0;
  o.peer_to_peer = (flags & 2) != 0;
  o.ird = static_cast<std::uint16_t>(in.byte());
  o.ord = static_cast<std::uint16_t>(in.byte());
  return o;
}

// `right`: the frame that an honest peer would send.
bytes first_bytes(reader& in, const start_frame& right) {
  const unsigned habits = in.byte();
  if (habits % 16 == 15)
    return in.take(in.byte());
  const auto encoded = encode((habits & 16) != 0 ? right : next_frame(in, right.reply));
  bytes all(encoded.view().begin(), encoded.view().end());
  if (habits % 16 == 14) {
    const std::size_t at = in.byte() % all.size();
    all[at] ^= static_cast<std::byte>(in.byte());
  }
  if (habits % 16 == 13)
    all.resize(in.byte() % (all.size() + 1));
  return all;
}

bytes fpdu(reader& in) {
  iwarp::segment_header h;
  const unsigned habits = in.byte();
  h.op = habits % 4 == 0 ? static_cast<iwarp::opcode>(in.byte() % iwarp::opcodes)
                         : iwarp::opcode::rdma_write;
  h.last = true;
  h.msn = 1;
  h.length = habits & 4 ? in.byte() % 32 : 0;
  bytes all(iwarp::max_fpdu_header);
  all.resize(iwarp::encode(
      h, std::span<std::byte, iwarp::max_fpdu_header>(all.data(), iwarp::max_fpdu_header)));
  const std::size_t ulpdu = all.size() - iwarp::ulpdu_length_size + h.length;
  all.resize(all.size() + h.length + iwarp::padding_of(ulpdu) + 4); // without a CRC
  return all;
}

bytes later_bytes(reader& in) {
  bytes all;
  for (unsigned n = in.byte() % 4; n != 0; --n) {
    const bytes next = in.byte() % 4 == 0 ? in.take(in.byte() % 32) : fpdu(in);
    all.insert(all.end(), next.begin(), next.end());
  }
  all.resize(std::min(all.size(), most_later));
  return all;
}

/// The judgement of the reader that fuzz_iwarp tests on a peer's start frame.
struct judgement {
  judgement(const bytes& all, bool reply) : reader(reply), result(reader.feed(all)) {}
  bool is_whole() const { return result.state == iwarp::start_reader::status::done; }
  bool waits() const { return result.state == iwarp::start_reader::status::more; }
  std::span<const std::byte> private_data() const { return reader.frame().private_data(); }
  iwarp::start_reader reader;
  iwarp::start_reader::result result;
};

// ---- the program

/// An event, acknowledged.
struct event {
  rdma_cm_event_type what;
  rdma_cm_id *id, *listener;
  bytes data;
};

class channel {
public:
  channel() { require(made_ != nullptr, "rdma_create_event_channel"); }
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  ~channel() { rdma_destroy_event_channel(made_); }
  operator rdma_event_channel*() const { return made_; }
  bool has_event() const { return wait_for(made_->fd, std::chrono::milliseconds(0)); }
  event next() const {
    require(wait_for(made_->fd), "an event does not come");
    rdma_cm_event* e = nullptr;
    require(uninterrupted([&] { return rdma_get_cm_event(made_, &e); }) == 0, "rdma_get_cm_event");
    const rdma_conn_param& c = e->param.conn;
    event taken{e->event, e->id, e->listen_id, {}};
    if (c.private_data != nullptr) {
      const auto* const first = static_cast<const std::byte*>(c.private_data);
      taken.data.assign(first, first + c.private_data_len);
    }
    require(c.initiator_depth <= 128 && c.responder_resources <= 128, "more READs than possible");
    rdma_ack_cm_event(e);
    return taken;
  }
  void expect(rdma_cm_event_type what) const { require(next().what == what, "another event"); }

private:
  rdma_event_channel* const made_ = rdma_create_event_channel();
};

/// The field of an event is what the peer has sent, and zeros.
void check_data(const bytes& field, std::span<const std::byte> sent) {
  require(field.size() >= sent.size() && std::equal(sent.begin(), sent.end(), field.begin()),
          "the private data is not the peer's");
  require(std::all_of(field.begin() + static_cast<std::ptrdiff_t>(sent.size()), field.end(),
                      [](std::byte b) { return b == std::byte{}; }),
          "the private data has other bytes");
}

/// Queues, a queue pair of an id, and receives for all messages of the peer.
class queue_pair_of {
public:
  explicit queue_pair_of(rdma_cm_id* id) : id_(id) {
    ibv_qp_init_attr a{};
    a.cap.max_send_wr = 1;
    a.cap.max_recv_wr = receives;
    a.cap.max_send_sge = a.cap.max_recv_sge = 1;
    a.qp_type = IBV_QPT_RC;
    if (rdma_create_qp(id, nullptr, &a) != 0)
      return;
    const int access = IBV_ACCESS_LOCAL_WRITE;
    mr_ = ibv_reg_mr(id->pd, memory_.data(), memory_.size(), access);
    require(mr_ != nullptr, "ibv_reg_mr");
    ibv_sge e{reinterpret_cast<std::uintptr_t>(memory_.data()), 64, mr_->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.sg_list = &e;
    wr.num_sge = 1;
    for (std::uint32_t i = 0; i != receives; ++i)
      require(ibv_post_recv(id->qp, &wr, &bad) == 0, "ibv_post_recv");
  }
  queue_pair_of(const queue_pair_of&) = delete;
  queue_pair_of& operator=(const queue_pair_of&) = delete;
  /// Not if the peer has ended the connection.
  bool is_made() const { return mr_ != nullptr; }
  ~queue_pair_of() {
    if (mr_ == nullptr)
      return;
    require(ibv_dereg_mr(mr_) == 0, "ibv_dereg_mr");
    rdma_destroy_qp(id_);
    require(std::all_of(memory_.begin() + 64, memory_.end(),
                        [](std::byte b) { return b == std::byte{}; }),
            "the peer wrote beyond a receive");
  }

private:
  rdma_cm_id* id_;
  std::array<std::byte, 128> memory_{};
  ibv_mr* mr_ = nullptr;
};

/// The events of an id from a connection that is under way to its end. `disconnects`: the program
/// ends the connection when it is established. Returns whether it was.
bool follow(const channel& c, rdma_cm_id* id, bool disconnects, rdma_cm_event_type* ended = nullptr,
            bytes* told = nullptr) {
  bool established = false;
  for (;;) {
    event e = c.next();
    require(e.id == id, "an event of another id");
    switch (e.what) {
    case RDMA_CM_EVENT_ESTABLISHED:
      require(!std::exchange(established, true), "a connection is established twice");
      if (disconnects)
        rdma_disconnect(id);
      continue;
    case RDMA_CM_EVENT_DISCONNECTED:
      require(established, "a connection is disconnected that was never established");
      break;
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
      require(!established, "an established connection is rejected");
      break;
    default:
      require(false, "an event that does not fit");
    }
    if (ended != nullptr)
      *ended = e.what;
    if (told != nullptr)
      *told = std::move(e.data);
    return established;
  }
}

struct listener {
  listener() {
    sockaddr_in any = loopback(0);
    require(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    require(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&any)) == 0, "rdma_bind_addr");
    require(rdma_listen(id, 16) == 0, "rdma_listen");
    port = ntohs(rdma_get_src_port(id));
  }
  channel events;
  rdma_cm_id* id = nullptr;
  std::uint16_t port = 0;
};

// It stays until the process ends.
const listener& the_listener() {
  static const listener* const made = new listener;
  return *made;
}

/// Waits until the program has an event, or the device has ended the connection.
bool has_request(const channel& c, peer& p) {
  for (;;) {
    pollfd both[] = {{static_cast<rdma_event_channel*>(c)->fd, POLLIN, 0}, {p.socket(), POLLIN, 0}};
    require(wait_for(both), "neither an event nor the end of the connection");
    if (both[0].revents != 0)
      return true;
    if (!p.receive())
      return c.has_event(); // the event comes before the end
  }
}

// One that the device has (rdma_connect(3)), or the largest.
std::uint8_t depth(reader& in) {
  constexpr unsigned most = 128, largest = 255;
  const unsigned any = in.byte();
  return static_cast<std::uint8_t>(any == largest ? any : any % (most + 1));
}

void be_client(reader& in) {
  const listener& here = the_listener();
  peer p(peer::connected_to(here.port));
  const bytes first = first_bytes(in, iwarp::make_request(options(in)));
  const judgement expected(first, false);
  const unsigned habits = in.byte();
  p.send(first, habits % 8 == 0 ? 1 + in.byte() : first.size());
  const bool ends_early = expected.waits() || habits / 8 % 8 == 0;
  if (ends_early)
    p.end();
  const bool has = has_request(here.events, p);
  require(has == (expected.is_whole() && expected.private_data().size() <= most_private),
          has ? "a request that is none" : "a request is lost");
  if (!has) {
    ++so_far().refused;
    return;
  }
  ++so_far().requests;
  const event request = here.events.next();
  require(request.what == RDMA_CM_EVENT_CONNECT_REQUEST && request.listener == here.id,
          "no request");
  check_data(request.data, expected.private_data());
  rdma_cm_id* const id = request.id;
  const unsigned act = in.byte();
  const bytes own = in.take(in.byte() % 149);
  if (act % 8 == 0) {
    rdma_reject(id, own.data(), static_cast<std::uint8_t>(own.size()));
  } else if (act % 8 != 1) {
    std::optional<queue_pair_of> queues(id);
    rdma_conn_param a{};
    a.private_data = own.data();
    a.private_data_len = static_cast<std::uint8_t>(own.size());
    a.initiator_depth = depth(in);
    a.responder_resources = depth(in);
    const bool accepts = queues->is_made() && rdma_accept(id, &a) == 0;
    require(accepts || (ends_early && errno == EINVAL), "the id cannot accept");
    p.send(later_bytes(in), most_later);
    p.end();
    so_far().accepted += follow(here.events, id, (act & 8) != 0) ? 1 : 0;
  }
  require(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  p.end();
  while (p.receive())
    continue;
}

struct tcp_listener {
  tcp_listener() {
    sockaddr_in a = loopback(0);
    socklen_t size = sizeof(a);
    require(bind(socket, reinterpret_cast<sockaddr*>(&a), size) == 0 && listen(socket, 16) == 0 &&
                getsockname(socket, reinterpret_cast<sockaddr*>(&a), &size) == 0,
            "listen");
    port = ntohs(a.sin_port);
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::uint16_t port = 0;
};

void be_server(reader& in) {
  static const tcp_listener here;
  const channel events;
  rdma_cm_id* id = nullptr;
  require(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_in to = loopback(here.port);
  require(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000) == 0,
          "rdma_resolve_addr");
  events.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
  require(rdma_resolve_route(id, 1000) == 0, "rdma_resolve_route");
  events.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
  std::optional<queue_pair_of> queues(id);
  require(queues->is_made(), "rdma_create_qp");
  const bytes own = in.take(in.byte() % 57);
  rdma_conn_param a{};
  a.private_data = own.data();
  a.private_data_len = static_cast<std::uint8_t>(own.size());
  a.initiator_depth = depth(in);
  a.responder_resources = depth(in);
  require(rdma_connect(id, &a) == 0, "rdma_connect");

  peer p(uninterrupted([] { return accept(here.socket, nullptr, nullptr); }));
  while (judgement(p.heard(), false).waits())
    require(p.receive(), "the device sends no request");
  const judgement request(p.heard(), false);
  require(request.is_whole() && std::ranges::equal(request.private_data(), own),
          "the device's request");
  const unsigned habits = in.byte();
  bytes all = first_bytes(in, iwarp::answer(request.reader.frame(), options(in)).reply);
  const bytes later = later_bytes(in);
  all.insert(all.end(), later.begin(), later.end());
  const judgement expected(all, true); // later bytes may complete a frame
  p.send(all, habits % 8 == 0 ? 1 + in.byte() : all.size() + 1);
  p.end();
  rdma_cm_event_type ended{};
  bytes told;
  const bool established = follow(events, id, (habits & 8) != 0, &ended, &told);
  const bool fits = expected.is_whole() && !expected.reader.frame().rejected;
  require(!established || fits, "a peer that did not accept is connected");
  if (expected.is_whole() && expected.reader.frame().rejected &&
      expected.private_data().size() <= most_private) {
    require(ended == RDMA_CM_EVENT_REJECTED, "a rejection is no rejection");
    check_data(told, expected.private_data());
  }
  so_far().established += established ? 1 : 0;
  so_far().rejected += ended == RDMA_CM_EVENT_REJECTED ? 1 : 0;
  so_far().failed += ended == RDMA_CM_EVENT_CONNECT_ERROR ? 1 : 0;
  queues.reset();
  require(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  while (p.receive())
    continue;
}

} // namespace

const cm_reached& cm_reached_so_far() noexcept { return so_far(); }

int fuzz_cm(const std::uint8_t* data, std::size_t size) {
  reader in(std::span(data, size));
  const unsigned role = in.byte();
  const listener& here = the_listener();
  soft_resources before{}, after{};
  soft_get_resources(&before);
  role % 2 == 0 ? be_client(in) : be_server(in);
  // Takes the engine's lock, and so waits for what the engine does after the end of a connection.
  require(rdma_set_option(here.id, -1, 0, nullptr, 0) == -1, "rdma_set_option");
  soft_get_resources(&after);
  require(std::memcmp(&before, &after, sizeof(before)) == 0, "objects are left");
  return 0;
}

} // namespace soft::test
