// SPDX-License-Identifier: BSL-1.0
// The socket of a wire: its start, its end, and the bytes on their way out.
#include "wire/iwarp_wire.hpp"

#include "device/in_force.hpp"

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

// Wires by number. A number above those of queue pairs, which have 24 bits.
struct wire_table {
  std::unordered_map<std::uint32_t, std::weak_ptr<iwarp_wire>> wires;
  std::uint32_t next = 1;
};
wire_table& wires() {
  static auto* const table = new wire_table;
  return *table;
}
constexpr std::uint32_t wire_bit = 1u << 24;
constexpr std::chrono::seconds linger{2};

} // namespace

iwarp::start_options start_options_of(unsigned answered, unsigned begun) noexcept {
  iwarp::start_options o;
  o.peer_to_peer = true;
  o.rtr = iwarp::rtr_kinds::rdma_write;
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
  wires().wires.erase(number_);
  engine::get().remove(*this);
  engine::get().forget(socket_);
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

std::shared_ptr<iwarp_wire> iwarp_wire::numbered(std::shared_ptr<iwarp_wire> w) {
  w->number_ = wire_bit | wires().next++;
  wires().wires.emplace(w->number_, w);
  return w;
}

// EPOLLRDHUP: the end of a connection is seen although nothing is read.
int iwarp_wire::watch(std::uint32_t events) {
  if (!peer_closed_)
    events |= EPOLLRDHUP;
  if (events == watched_)
    return 0;
  const int error = is_watched_ ? engine::get().change(socket_, events)
                                : engine::get().watch(socket_, events, *this);
  is_watched_ = true;
  watched_ = events;
  return error;
}

void iwarp_wire::stop_watching() {
  engine::get().forget(socket_);
  is_watched_ = false;
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

// The peer has closed while its last messages wait for receives. The owner learns of the end, and
// the queue pair may still take the messages.
void iwarp_wire::ended_while_stopped(std::uint32_t events) {
  if ((events & EPOLLERR) != 0)
    return lose_peer(ECONNRESET);
  peer_closed_ = true;
  if ((events & EPOLLHUP) != 0) { // of a local socket: nothing arrives there any more
    stop_watching();
    stop_sending();
    qp_->peer_left();
  } else {
    watch(watched_ & ~static_cast<std::uint32_t>(EPOLLRDHUP));
  }
  if (owner_ != nullptr)
    std::exchange(owner_, nullptr)->ended(0);
}

void iwarp_wire::run() {
  if (stage_ == stage::running)
    receive();
  else if (stage_ == stage::draining) // its time is over
    lingering_.reset();
}

void iwarp_wire::send_start(const iwarp::start_frame& f) {
  write_out(iwarp::encode(f).view());
  flush();
}

void iwarp_wire::begin(bool crc, bool initiator) {
  start_.reset();
  reader_.emplace(crc, static_cast<iwarp::segment_sink&>(*this));
  writer_.emplace(crc);
  may_send_ = initiator;
  stage_ = qp_ != nullptr ? stage::running : stage::waiting;
  if (qp_ != nullptr)
    engine::get().schedule(*this);
  watch(qp_ != nullptr ? EPOLLIN : 0u);
}

void iwarp_wire::send_ready() {
  if (stage_ == stage::closed || !writer_->start({.op = iwarp::opcode::rdma_write}))
    return; // a message that is being sent has the same effect
  iwarp::outgoing_segment s;
  writer_->next(s);
  writer_->seal(s, {});
  write_out(s.header());
  write_out(s.trailer());
  flush();
}

void iwarp_wire::attach(queue_pair& qp) {
  qp_ = &qp;
  if (stage_ != stage::waiting)
    return;
  stage_ = stage::running;
  watch(EPOLLIN);
  engine::get().schedule(*this);
}

void iwarp_wire::detach() {
  if (qp_ == nullptr)
    return;
  if (std::exchange(receive_taken_, false)) {
    qp_->received(receive_wr_, IBV_WC_WR_FLUSH_ERR, {});
    qp_->fail(); // of type UC: the message ends too early for its shared receive
  }
  waits_.stop();
  qp_ = nullptr;
  flights_.clear();
  close();
}

void iwarp_wire::fall_silent() {
  if (stage_ != stage::waiting && stage_ != stage::running)
    return;
  flush();
  stop_sending();
  stage_ = stage::silent;
  stop_watching();
  waits_.stop();
}

void iwarp_wire::kill() {
  flush();
  sockaddr nothing{};
  nothing.sa_family = AF_UNSPEC;
  ::connect(socket_, &nothing, sizeof(nothing)); // of TCP: a reset
  end(ECONNRESET);
}

// With bytes of the peer that were not read, close(2) would reset the connection, and what was sent
// could be lost. So the wire sends the rest, and reads until the peer has closed, too, or for some
// time.
void iwarp_wire::close() {
  if (stage_ == stage::closed || stage_ == stage::draining)
    return;
  if (stage_ == stage::connecting)
    return end(0);
  stage_ = stage::draining;
  owner_ = nullptr;
  lingering_ = find(number_);
  watch(EPOLLIN);
  engine::get().schedule_at(*this, clock::now() + linger);
  drain();
}

void iwarp_wire::drain() {
  flush();
  if (out_.empty() && !std::exchange(finished_, true))
    shutdown(socket_, SHUT_WR);
  std::byte dropped[4096];
  ssize_t n = 0;
  for (int turn = 0; turn < 64; ++turn)
    if ((n = read(socket_, dropped, sizeof(dropped))) <= 0)
      break;
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    stage_ = stage::closed;
    stop_watching();
    lingering_.reset(); // perhaps the last reference
  }
}

// Requests that have been carried out complete; the queue pair keeps the others.
void iwarp_wire::stop_sending() {
  complete_requests();
  flights_.clear();
  if (writer_)
    writer_->abandon();
  broken_ = true;
  out_.clear();
  out_sent_ = 0;
}

void iwarp_wire::close_socket() {
  stage_ = stage::closed;
  stop_watching();
  shutdown(socket_, SHUT_RDWR);
}

// This side ends the connection, because of an error.
void iwarp_wire::end(int error) {
  if (stage_ == stage::closed || stage_ == stage::draining)
    return;
  close_socket();
  if (qp_ != nullptr)
    qp_->lose_wire();
  if (owner_ != nullptr)
    std::exchange(owner_, nullptr)->ended(error);
}

// The peer has ended the connection.
void iwarp_wire::lose_peer(int error) {
  if (stage_ == stage::closed || stage_ == stage::draining)
    return;
  close_socket();
  stop_sending();
  if (qp_ != nullptr)
    qp_->peer_left();
  if (owner_ != nullptr)
    std::exchange(owner_, nullptr)->ended(error);
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
  if (out_sent_ >= 128 * 1024) { // of a connection that never catches up
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_sent_));
    out_sent_ = 0;
  }
  const bool all = out_sent_ == out_.size();
  if (all) {
    out_.clear();
    out_sent_ = 0;
  }
  if (stage_ == stage::closed)
    return;
  const std::uint32_t in = watched_ & EPOLLIN;
  watch(all ? in : in | EPOLLOUT);
}

} // namespace soft
