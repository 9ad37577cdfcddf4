// SPDX-License-Identifier: BSL-1.0
// The socket of a wire: its start, and the bytes on their way out.
#include "wire/iwarp_wire.hpp"

#include "device/in_force.hpp"
#include "engine/of_process.hpp"

#include <algorithm>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <unordered_map>

namespace soft {
namespace {

constexpr std::uint32_t first_wire = 1u << 24;
constexpr int largest_packet = 9216; // bytes, of the networks that there are

// Wires by number. Their numbers are above those of queue pairs, which have 24 bits.
struct wire_table {
  std::unordered_map<std::uint32_t, std::weak_ptr<iwarp_wire>> wires;
  std::uint32_t next = first_wire;
};
wire_table& wires() { return of_process<wire_table>(); }

} // namespace

iwarp::start_options start_options_of(unsigned answered, unsigned begun, bool crc) noexcept {
  iwarp::start_options o;
  o.crc = crc;
  o.peer_to_peer = true;
  o.rtr = iwarp::rtr_kinds::rdma_write | iwarp::rtr_kinds::rdma_read;
  o.ird = static_cast<std::uint16_t>(answered);
  o.ord = static_cast<std::uint16_t>(begun);
  o.max_ird = most_reads();
  return o;
}

iwarp_wire::iwarp_wire(int socket, wire_owner& owner) : socket_(socket), owner_(&owner) {
  const int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

iwarp_wire::~iwarp_wire() {
  auto& all = wires().wires;
  // In a child after fork(2) another wire may have the number, and the parent watches the socket.
  if (const auto of = all.find(number_); of != all.end() && of->second.expired()) {
    all.erase(of);
    stop_watching();
  }
  engine::get().remove(*this);
  ::close(socket_);
}

std::shared_ptr<peer_wire> find_wire(std::uint32_t number) { return iwarp_wire::find(number); }

std::shared_ptr<iwarp_wire> iwarp_wire::find(std::uint32_t number) {
  const auto found = wires().wires.find(number);
  return found == wires().wires.end() ? nullptr : found->second.lock();
}

std::shared_ptr<iwarp_wire> iwarp_wire::connect(int socket, const sockaddr& to, socklen_t size,
                                                wire_owner& owner, int& error) {
  std::shared_ptr<iwarp_wire> w(new iwarp_wire(socket, owner));
  error = ::connect(socket, &to, size) == 0 || errno == EINPROGRESS ? 0 : errno;
  if (error == 0) {
    w->stage_ = stage::connecting;
    w->start_.emplace(true);
    error = w->watch(EPOLLOUT);
  }
  if (error != 0)
    return nullptr;
  return numbered(std::move(w));
}

std::shared_ptr<iwarp_wire> iwarp_wire::accept(int socket, wire_owner& owner, int& error) {
  std::shared_ptr<iwarp_wire> w(new iwarp_wire(socket, owner));
  w->start_.emplace(false);
  error = w->watch(EPOLLIN);
  if (error != 0)
    return nullptr;
  return numbered(std::move(w));
}

// A peer may have begun more connections than there are numbers.
std::shared_ptr<iwarp_wire> iwarp_wire::numbered(std::shared_ptr<iwarp_wire> w) {
  auto& [all, next] = wires();
  while (!all.emplace(next, w).second)
    next = std::max(next + 1, first_wire);
  w->number_ = next;
  next = std::max(next + 1, first_wire);
  return w;
}

// The table of the program's threads, unless they may look at other queues, or what is to be sent
// waits for the socket.
descriptor_table& iwarp_wire::present_table() {
  descriptor_table* visited = nullptr;
  if (stage_ == stage::running && kept_by_engine_ == 0)
    visited = completion_queue::of(qp_->qp_base.recv_cq).wires().table();
  return visited != nullptr ? *visited : engine::get().descriptors();
}

// EPOLLRDHUP: the end of a connection is seen although nothing is read.
int iwarp_wire::watch(std::uint32_t events) {
  if (!peer_closed_)
    events |= EPOLLRDHUP;
  descriptor_table& by = present_table();
  if (watched_by_ == &by && events == watched_)
    return 0;
  if (watched_by_ != &by)
    stop_watching();
  const int error =
      watched_by_ != nullptr ? by.change(socket_, events) : by.watch(socket_, events, *this);
  if (error == 0) {
    watched_by_ = &by;
    watched_ = events;
  }
  return error;
}

void iwarp_wire::stop_watching() {
  if (watched_by_ != nullptr)
    watched_by_->forget(socket_);
  watched_by_ = nullptr;
  watched_ = 0;
}

void iwarp_wire::ready(std::uint32_t events) {
  const auto self = find(number_); // the owner may drop the last reference
  if (!self || stage_ == stage::closed)
    return;
  if (stage_ == stage::draining)
    return drain();
  if (stage_ == stage::connecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0)
      return end(error);
    stage_ = stage::starting;
    watch(EPOLLIN);
  }
  if ((events & EPOLLOUT) != 0) {
    flush();
    if (qp_ != nullptr)
      pump();
  }
  if (stage_ == stage::running && reader_->state() == iwarp::reader_state::stopped &&
      (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
    return ended_while_stopped(events);
  if (stage_ == stage::waiting && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 &&
      (events & EPOLLIN) == 0)
    return end(0);
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
    receive();
}

void iwarp_wire::run() {
  const auto self = find(number_); // the owner may drop the last reference
  if (deadline_ != clock::time_point::max() && clock::now() >= deadline_) {
    if (stage_ == stage::draining)
      return stop_lingering();
    return end(ETIMEDOUT);
  }
  if (next_look_ != clock::time_point::max() && clock::now() >= next_look_)
    look();
  if (stage_ == stage::running)
    receive();
}

void iwarp_wire::expect(clock::duration time) { end_in(time); }

void iwarp_wire::end_in(clock::duration time) {
  deadline_ = clock::now() + time;
  set_timer();
}

void iwarp_wire::set_timer() { engine::get().schedule_at(*this, std::min(deadline_, next_look_)); }

void iwarp_wire::send_start(const iwarp::start_frame& f) {
  write_out(iwarp::encode(f).view());
  flush();
}

void iwarp_wire::begin(const iwarp::start_result& agreed, bool initiator) {
  start_.reset();
  reader_.emplace(agreed.crc, static_cast<iwarp::segment_sink&>(*this));
  writer_.emplace(agreed.crc, largest_ulpdu());
  ready_by_read_ = initiator && agreed.rtr == iwarp::rtr_kinds::rdma_read;
  ird_ = agreed.ird;
  ord_ = agreed.ord;
  may_send_ = initiator && !ready_by_read_;
  stage_ = qp_ != nullptr ? stage::running : stage::waiting;
  if (qp_ != nullptr)
    engine::get().schedule(*this);
  watch(qp_ != nullptr ? EPOLLIN : 0u);
}

// Of an FPDU that fits into a TCP segment of this connection. A Unix socket has no segments, and
// neither has a connection within a host, whose segment is larger than any network's packet.
// Source: RFC 5044, section 5.1
std::size_t iwarp_wire::largest_ulpdu() const {
  int segment = 0;
  socklen_t size = sizeof(segment);
  if (getsockopt(socket_, IPPROTO_TCP, TCP_MAXSEG, &segment, &size) != 0 || segment < 0 ||
      segment > largest_packet)
    return iwarp::fpdu_writer::largest_ulpdu;
  return iwarp::largest_ulpdu_of(static_cast<std::size_t>(segment));
}

void iwarp_wire::send_ready() {
  if (stage_ == stage::closed)
    return;
  // A WRITE: a message that is being sent has the same effect.
  if (!writer_->start(ready_by_read_
                          ? iwarp::outgoing_message{.op = iwarp::opcode::rdma_read_request,
                                                    .length = iwarp::read_request_size}
                          : iwarp::outgoing_message{.op = iwarp::opcode::rdma_write}))
    return;
  // No adapter looks at the keys of a READ of no bytes, but 0 may be special.
  const auto request = encode(iwarp::read_request{sink_key, 0, 0, 1, 0});
  const std::span<const std::byte> payload[] = {ready_by_read_ ? std::span<const std::byte>(request)
                                                               : std::span<const std::byte>()};
  iwarp::outgoing_segment s;
  writer_->next(s);
  writer_->seal(s, payload);
  write_out(s.header());
  write_out(payload[0]);
  write_out(s.trailer());
  flush();
  if (ready_by_read_) {
    ++reads_;
    ready_waits_ = may_send_ = true;
    if (qp_ != nullptr)
      engine::get().schedule(*qp_);
  }
}

void iwarp_wire::attach(queue_pair& qp) {
  qp_ = &qp;
  if (stage_ != stage::waiting || !reader_) // an acceptor's queue pair comes before the reply
    return;
  stage_ = stage::running;
  watch(EPOLLIN);
  engine::get().schedule(*this);
}

void iwarp_wire::write_out(std::span<const std::byte> bytes) {
  queued_ += bytes.size();
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void iwarp_wire::flush() {
  if (stage_ == stage::connecting) // send(2) would take the error of connect(2)
    return;
  while (out_sent_ != out_.size()) {
    const ssize_t n = ::send(socket_, out_.data() + out_sent_, out_.size() - out_sent_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      break; // EAGAIN; other errors are seen by the reader
    out_sent_ += static_cast<std::size_t>(n);
  }
  if (out_sent_ >= 1 << 17) { // of a connection that never catches up
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_sent_));
    out_sent_ = 0;
  }
  const bool all = out_sent_ == out_.size();
  if (all) {
    out_.clear();
    out_sent_ = 0;
  }
  if (stage_ == stage::closed || stage_ == stage::silent)
    return;
  if (!all)
    kept_by_engine_ = receives_until_visits;
  const std::uint32_t in = watched_ & EPOLLIN;
  watch(all ? in : in | EPOLLOUT);
}

} // namespace soft
