// SPDX-License-Identifier: BSL-1.0
// The ends of a wire: by either side, by an error of either side, or by a fault of the settings.
#include "wire/iwarp_wire.hpp"

#include "engine/of_process.hpp"

#include <cerrno>
#include <list>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace soft {

using iwarp::error_layer;
using iwarp::rdmap_error_code;
using iwarp::rdmap_error_type;

namespace {

constexpr std::chrono::seconds linger{2};
constexpr std::size_t most_lingering = 128; // each has a descriptor, and a peer may make many

// The wires that linger, the oldest first. It keeps them alive.
struct lingering_wires {
  std::list<std::shared_ptr<iwarp_wire>> all;
};
std::list<std::shared_ptr<iwarp_wire>>& lingering() { return of_process<lingering_wires>().all; }

constexpr iwarp::protocol_error local_error =
    iwarp::rdmap_error(rdmap_error_type::local_catastrophic, rdmap_error_code::unspecific);

ibv_wc_status status_of(const iwarp::protocol_error& e) {
  if (e.layer == error_layer::ddp &&
      e.type == static_cast<std::uint8_t>(iwarp::ddp_error_type::untagged_buffer))
    return IBV_WC_REM_INV_REQ_ERR;
  if (e.layer == error_layer::ddp ||
      (e.layer == error_layer::rdmap &&
       e.type == static_cast<std::uint8_t>(rdmap_error_type::remote_protection)))
    return IBV_WC_REM_ACCESS_ERR;
  return IBV_WC_REM_OP_ERR;
}

} // namespace

// ---- by a Terminate message (RFC 5040, sections 5.4 and 6.2.1)

// The last message of this side. The segments of the message before it that were not sent are
// dropped.
void iwarp_wire::send_terminate(const iwarp::terminate& t) {
  writer_->abandon();
  writer_->start(
      {.op = iwarp::opcode::terminate, .length = static_cast<std::uint32_t>(t.bytes().size())});
  iwarp::outgoing_segment s;
  writer_->next(s);
  const std::span<const std::byte> payload[] = {t.bytes()};
  writer_->seal(s, payload);
  write_out(s.header());
  write_out(t.bytes());
  write_out(s.trailer());
}

// The segment or the message that came last was wrong.
void iwarp_wire::fail(const iwarp::protocol_error& e) {
  if (stage_ != stage::running)
    return end(EPROTO);
  fail(iwarp::terminate(e, reader_->fpdu_header(),
                        std::span(payload_).first(iwarp::read_request_size)));
}

// Tells the peer what was wrong, and ends. The connection stays until the message has arrived.
void iwarp_wire::fail(const iwarp::terminate& t) {
  send_terminate(t);
  wire_owner* const owner = owner_;
  give_up();
  if (owner != nullptr)
    owner->ended(0);
}

// The answer to a READ cannot go on: its memory is not there any more. The message names the rest
// of the READ (RFC 5040, section 4.8).
void iwarp_wire::fail_answer(const answer& a, std::uint32_t offset,
                             const iwarp::protocol_error& e) {
  std::array<std::byte, iwarp::max_fpdu_header> header;
  const std::size_t size = encode(iwarp::segment_header{.op = iwarp::opcode::rdma_read_request,
                                                        .msn = a.msn,
                                                        .length = iwarp::read_request_size},
                                  header);
  const auto rest = encode(iwarp::read_request{a.sink, a.sink_offset + offset, a.length - offset,
                                               a.source, a.source_offset + offset});
  fail(iwarp::terminate(e, std::span(header).first(size), rest));
}

void iwarp_wire::refuse(const iwarp::protocol_error& e, bool crc) {
  writer_.emplace(crc);
  send_terminate(iwarp::terminate(e));
  close();
}

// The peer reports an error: of the oldest request that has not completed, or one of its own.
void iwarp_wire::end_terminate(std::uint32_t bytes) {
  const auto t = iwarp::terminate::decode(std::span(payload_).first(bytes));
  const bool is_its_own = t && t->error().layer != error_layer::llp && t->error().type == 0;
  if (!flights_.empty() && is_reliable() && !is_its_own) {
    flights_.clear();
    qp_->complete_first({outcome::done, t ? status_of(t->error()) : IBV_WC_REM_OP_ERR, 0});
  }
  end(ECONNRESET);
}

// ---- by the queue pair, or its owner

// After a request that could not be sent, a Terminate message takes its place (RFC 5040, section
// 7.1, rule 1).
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
  if (!reader_ && owner_ != nullptr) // the acceptor has not replied: it may still reject
    return;
  if (broken_ && stage_ == stage::running)
    send_terminate(iwarp::terminate(local_error));
  wire_owner* const owner = owner_;
  close();
  if (owner != nullptr)
    owner->ended(ESHUTDOWN);
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
  lingering().push_back(find(number_));
  watch(EPOLLIN);
  end_in(linger);
  if (lingering().size() > most_lingering) {
    const auto oldest = lingering().front();
    oldest->close_socket();
    oldest->stop_lingering();
  }
  drain();
}

// Perhaps that was the last reference.
void iwarp_wire::stop_lingering() {
  std::erase_if(lingering(), [this](const auto& w) { return w.get() == this; });
}

void iwarp_wire::give_up() {
  queue_pair* const qp = qp_;
  close();
  if (qp != nullptr)
    qp->lose_wire();
}

void iwarp_wire::drain() {
  flush();
  if (out_.empty() && !std::exchange(finished_, true))
    shutdown(socket_, SHUT_WR);
  std::byte dropped[4096];
  ssize_t n = 0;
  for (int turn = 0; turn < 64; ++turn) {
    n = read(socket_, dropped, sizeof(dropped));
    if (n <= 0)
      break;
  }
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    stage_ = stage::closed;
    stop_watching();
    stop_lingering();
  }
}

// ---- by the peer, or by TCP

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

void iwarp_wire::close_socket() {
  stage_ = stage::closed;
  stop_watching();
  shutdown(socket_, SHUT_RDWR);
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

// ---- by a fault of the settings

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

} // namespace soft
