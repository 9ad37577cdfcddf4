// SPDX-License-Identifier: BSL-1.0
// A peer's host that does not answer any more: it is lost, or the cable is cut.
#include "wire/iwarp_wire.hpp"

#include <algorithm>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace soft {
namespace {

// TCP repeats a segment after 200 ms, 400 ms and so on, so a shorter time would take two lost
// segments for a lost host.
constexpr std::chrono::seconds shortest{1};
constexpr std::chrono::milliseconds longest_pause{1000}; // between two looks

} // namespace

// TCP_USER_TIMEOUT is of no use: it also ends connections whose peer acknowledges all probes and
// has no room, because its process is stopped or posts no receive (tcp_probe_timer of the kernel).
void iwarp_wire::watch_host() {
  if (next_look_ != clock::time_point::max() || stage_ != stage::running || !is_reliable())
    return;
  const auto wanted = qp_->answer_time();
  if (wanted.count() == 0) // without limit
    return;
  const auto time = std::max<clock::duration>(wanted, shortest);
  if (std::exchange(silence_, time) != time)
    keep_alive();
  unanswered_since_ = clock::time_point::max();
  look_again();
}

// Between two messages TCP sends nothing by itself. The probes find a silent host while a READ
// waits for its answer; the end of a connection is decided here.
void iwarp_wire::keep_alive() {
  const auto set = [this](int level, int option, int value) {
    setsockopt(socket_, level, option, &value, sizeof(value)); // not of a Unix socket
  };
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence_).count();
  const int pause = static_cast<int>(std::clamp<std::int64_t>(seconds, 1, 60));
  set(IPPROTO_TCP, TCP_KEEPIDLE, pause);
  set(IPPROTO_TCP, TCP_KEEPINTVL, pause);
  set(IPPROTO_TCP, TCP_KEEPCNT, 127); // the most
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

void iwarp_wire::look_again() {
  next_look_ = clock::now() + std::min<clock::duration>(silence_ / 2, longest_pause);
  set_timer();
}

// The host is silent if TCP has asked, by a repeated segment or a probe, and nothing has come since
// then. A process that is stopped, or that has no receive, has a kernel that answers.
void iwarp_wire::look() {
  next_look_ = clock::time_point::max();
  if (stage_ != stage::running || qp_ == nullptr)
    return;
  tcp_info info{};
  socklen_t size = sizeof(info);
  int unsent = 0; // and not acknowledged
  if (getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      ioctl(socket_, SIOCOUTQ, &unsent) != 0)
    return; // a Unix socket
  if (unsent == 0 && flights_.empty())
    return; // `pump` begins anew
  const auto now = clock::now();
  if (info.tcpi_retransmits == 0 && info.tcpi_probes == 0) {
    unanswered_since_ = clock::time_point::max();
    return look_again();
  }
  const auto heard = now - std::chrono::milliseconds(info.tcpi_last_ack_recv);
  if (unanswered_since_ == clock::time_point::max() || heard > unanswered_since_)
    unanswered_since_ = now;
  if (now - unanswered_since_ >= silence_)
    return lose_host();
  look_again();
}

// As InfiniBand's requests without an answer.
void iwarp_wire::lose_host() {
  stop_sending();
  if (qp_->request(0) != nullptr)
    qp_->complete_first({outcome::done, IBV_WC_RETRY_EXC_ERR, 0});
  end(ETIMEDOUT);
}

} // namespace soft
