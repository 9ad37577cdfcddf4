// SPDX-License-Identifier: BSL-1.0
#include "wire/datagram_socket.hpp"

#include "device/queue_pair.hpp"

#include <cerrno>
#include <sys/epoll.h>
#include <unistd.h>
#include <utility>

namespace soft {
namespace {

// A process that takes no datagram for so long is stopped: datagrams to it are lost.
constexpr std::chrono::seconds longest_wait{1};

} // namespace

datagram_socket::~datagram_socket() {
  wake();
  close(socket_);
}

datagram_socket::result datagram_socket::try_to_send(const msghdr& m) {
  used_ = clock::now();
  while (sendmsg(socket_, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR)
      continue;
    if (errno == EAGAIN)
      return result::behind;
    return errno == ECONNREFUSED || errno == EPIPE || errno == ENOTCONN ? result::gone
                                                                        : result::sent;
  }
  return result::sent;
}

datagram_socket::result datagram_socket::send(queue_pair& from, const msghdr& m) {
  const result r = try_to_send(m);
  if (r == result::behind)
    return wait(from) ? result::behind : result::sent;
  if (r == result::sent)
    behind_since_ = {};
  return r;
}

bool datagram_socket::is_awaited() const noexcept {
  return !waiting_.empty() && clock::now() < behind_since_ + longest_wait;
}

// False: it has been behind for too long, or cannot be waited for.
bool datagram_socket::wait(queue_pair& from) {
  if (behind_since_ == clock::time_point{})
    behind_since_ = used_;
  const auto until = behind_since_ + longest_wait;
  if (used_ >= until)
    return false;
  if (waiting_.empty() && engine::get().watch(socket_, EPOLLOUT, *this) != 0)
    return false;
  waiting_.insert(from.qp_base.qp_num);
  engine::get().schedule_at(from, until);
  return true;
}

void datagram_socket::ready(std::uint32_t) {
  behind_since_ = {}; // it has taken a datagram
  wake();
}

void datagram_socket::wake() {
  engine::get().forget(socket_);
  for (const std::uint32_t number : std::exchange(waiting_, {}))
    if (queue_pair* const qp = queue_pair::find(number))
      engine::get().schedule(*qp);
}

} // namespace soft
