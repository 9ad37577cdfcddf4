// SPDX-License-Identifier: BSL-1.0
#include "cm/resolution.hpp"

#include "cm/addresses.hpp"
#include "device/in_force.hpp"
#include "engine/of_process.hpp"
#include "roce/network_header.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <random>
#include <sys/epoll.h>
#include <unistd.h>
#include <vector>

namespace soft {
namespace {

constexpr std::chrono::seconds pause{1}; // until a request is repeated
constexpr int turns = 64;                // messages before other tasks get their turn

std::uint64_t random_number() {
  static std::random_device source;
  return std::uint64_t(source()) << 32 | source();
}

// The requests that this process has got.
std::vector<const cm_answer*>& answers() { return of_process<std::vector<const cm_answer*>>(); }

// Receives one message. Returns its bytes; 0: it is too long, or there was an interruption; -1:
// errno.
ssize_t receive(int socket, std::array<std::byte, roce::resolution_size + 1>& to,
                sockaddr_storage& from) {
  socklen_t size = sizeof(from);
  const ssize_t n = recvfrom(socket, to.data(), to.size(), MSG_DONTWAIT,
                             reinterpret_cast<sockaddr*>(&from), &size);
  return n < 0 && errno == EINTR ? 0 : n;
}

void send_from(const sockaddr& own, const sockaddr& to, const roce::resolution_message& m) {
  const int s = socket(own.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s < 0)
    return; // the request comes again
  sockaddr_storage any_port{};
  std::memcpy(&any_port, &own, size_of(own));
  port_of(reinterpret_cast<sockaddr&>(any_port)) = 0;
  if (bind(s, reinterpret_cast<sockaddr*>(&any_port), size_of(own)) == 0) [[maybe_unused]]
    const auto sent = sendto(s, m.data(), m.size(), MSG_NOSIGNAL, &to, size_of(to));
  close(s);
}

private_data data_of(std::span<const std::byte> bytes) {
  private_data d;
  d.size = static_cast<std::uint8_t>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), d.bytes.begin());
  return d;
}

roce::resolution_reply reply_to(const roce::resolution_request& r, roce::resolution_status status) {
  roce::resolution_reply reply;
  reply.transaction = r.transaction;
  reply.id = r.id;
  reply.service = r.service;
  reply.status = static_cast<std::uint8_t>(status);
  return reply;
}

// Writes the address, without its port, of the same family as `to`.
void put(const ibv_gid& g, sockaddr_storage& to) {
  if (to.ss_family == AF_INET6)
    std::memcpy(&reinterpret_cast<sockaddr_in6&>(to).sin6_addr, g.raw, 16);
  else
    std::memcpy(&reinterpret_cast<sockaddr_in&>(to).sin_addr, g.raw + 12, 4);
}

} // namespace

cm_inquiry::cm_inquiry(cm_id& i) : id_(i) {}

cm_inquiry::~cm_inquiry() {
  engine::get().remove(*this);
  engine::get().forget(id_.port_holder);
}

void cm_inquiry::begin(const private_data& data) {
  auto& addresses = id_.route.addr;
  request_.transaction = random_number();
  request_.id = static_cast<std::uint32_t>(random_number());
  request_.service = roce::service_of(ntohs(port_of(addresses.dst_addr)));
  request_.source_port = ntohs(port_of(addresses.src_addr));
  request_.source = gid_of(addresses.src_addr);
  request_.destination = gid_of(addresses.dst_addr);
  std::copy_n(data.bytes.begin(), data.size, request_.data.begin());
  given_up_ = clock::now() + current().answer;
  // Then a port without a listener is an error of the socket.
  const int yes = 1;
  if (addresses.src_addr.sa_family == AF_INET6)
    setsockopt(id_.port_holder, IPPROTO_IPV6, IPV6_RECVERR, &yes, sizeof(yes));
  else
    setsockopt(id_.port_holder, IPPROTO_IP, IP_RECVERR, &yes, sizeof(yes));
  if (const int error = engine::get().watch(id_.port_holder, EPOLLIN, *this))
    return fail(error);
  send();
}

void cm_inquiry::send() {
  engine::get().schedule_at(*this, std::min(clock::now() + pause, given_up_));
  const roce::resolution_message m = encode(request_);
  const sockaddr& to = id_.route.addr.dst_addr;
  const ssize_t n =
      sendto(id_.port_holder, m.data(), m.size(), MSG_DONTWAIT | MSG_NOSIGNAL, &to, size_of(to));
  if (n < 0 && errno != EAGAIN && errno != EINTR)
    fail(errno);
}

// Where no process has the port, the kernel's connection manager would answer.
void cm_inquiry::fail(int error) {
  end(RDMA_CM_EVENT_UNREACHABLE,
      error == ECONNREFUSED ? static_cast<int>(roce::resolution_status::unsupported) : -error);
}

void cm_inquiry::run() {
  if (clock::now() >= given_up_)
    return end(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  send();
}

void cm_inquiry::ready(std::uint32_t) {
  std::array<std::byte, roce::resolution_size + 1> bytes;
  sockaddr_storage from{};
  for (int turn = 0; turn < turns; ++turn) {
    const ssize_t n = receive(id_.port_holder, bytes, from);
    if (n < 0 && errno == EAGAIN)
      return;
    if (n < 0)
      return fail(errno);
    const auto r = roce::decode_reply({bytes.data(), static_cast<std::size_t>(n)});
    if (!r || r->transaction != request_.transaction || r->id != request_.id ||
        r->service != request_.service)
      continue;
    const private_data data = data_of(r->data);
    if (r->status != 0)
      return end(RDMA_CM_EVENT_UNREACHABLE, r->status, &data);
    id_.peer_qp_num = r->qp_num;
    id_.q_key = r->q_key;
    return end(RDMA_CM_EVENT_ESTABLISHED, 0, &data);
  }
}

void cm_inquiry::end(rdma_cm_event_type what, int status, const private_data* data) {
  cm_id& id = id_;
  id.state = what == RDMA_CM_EVENT_ESTABLISHED ? cm_state::connected : cm_state::ended;
  id.inquiry.reset(); // this
  id.tell(what, status, data, data != nullptr ? resolution_data : 0);
}

cm_inquiry_listener::~cm_inquiry_listener() { engine::get().forget(id_.port_holder); }

int cm_inquiry_listener::begin() { return engine::get().watch(id_.port_holder, EPOLLIN, *this); }

void cm_inquiry_listener::ready(std::uint32_t) {
  std::array<std::byte, roce::resolution_size + 1> bytes;
  sockaddr_storage from{};
  for (int turn = 0; turn < turns; ++turn) {
    const ssize_t n = receive(id_.port_holder, bytes, from);
    if (n < 0 && errno == EAGAIN)
      return;
    if (n <= 0)
      continue;
    if (const auto r = roce::decode_request({bytes.data(), static_cast<std::size_t>(n)}))
      take(*r, reinterpret_cast<sockaddr&>(from));
  }
}

// The sender of a request must be the one that it names.
void cm_inquiry_listener::take(const roce::resolution_request& r, const sockaddr& from) {
  sockaddr_storage own{}, theirs{};
  std::memcpy(&own, &from, size_of(from));
  std::memcpy(&theirs, &from, size_of(from));
  auto& source = reinterpret_cast<sockaddr&>(theirs);
  auto& destination = reinterpret_cast<sockaddr&>(own);
  port_of(destination) = port_of(id_.route.addr.src_addr);
  if (!is_same(gid_of(source), r.source) || ntohs(port_of(source)) != r.source_port ||
      r.service != roce::service_of(ntohs(port_of(destination))) || !is_here(r.destination) ||
      roce::is_ipv4(r.destination) != (from.sa_family == AF_INET))
    return;
  put(r.destination, own);
  for (const cm_answer* const a : answers())
    if (a->is_for(r))
      return a->send_again();
  auto made = std::make_unique<cm_id>();
  made->ps = RDMA_PS_UDP;
  made->qp_type = IBV_QPT_UD;
  made->route.addr.src_storage = own;
  made->route.addr.dst_storage = theirs;
  made->answer = std::make_unique<cm_answer>(*made, r);
  if (take_request(id_, std::move(made), data_of(r.data)) == nullptr)
    send_from(destination, source, encode(reply_to(r, roce::resolution_status::rejected)));
}

cm_answer::cm_answer(cm_id& i, const roce::resolution_request& r)
    : id_(i),
      reply_(reply_to(r, roce::resolution_status::success)),
      source_(r.source),
      source_port_(r.source_port) {
  answers().push_back(this);
}

cm_answer::~cm_answer() { std::erase(answers(), this); }

bool cm_answer::is_for(const roce::resolution_request& r) const noexcept {
  return r.transaction == reply_.transaction && r.id == reply_.id && is_same(r.source, source_) &&
         r.source_port == source_port_;
}

void cm_answer::send(roce::resolution_status status, const private_data& data) {
  reply_.status = static_cast<std::uint8_t>(status);
  if (status == roce::resolution_status::success) {
    reply_.qp_num = id_.qp_num;
    reply_.q_key = id_.q_key;
  }
  std::copy_n(data.bytes.begin(), data.size, reply_.data.begin());
  sent_ = true;
  send_again();
}

void cm_answer::send_again() const {
  if (sent_)
    send_from(id_.route.addr.src_addr, id_.route.addr.dst_addr, encode(reply_));
}

} // namespace soft
