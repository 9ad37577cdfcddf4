// SPDX-License-Identifier: BSL-1.0
#include "wire/wire_listener.hpp"

#include "device/in_force.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace soft {
namespace {

constexpr std::chrono::seconds patience{10}; // for a request; siw's is 5 s (MPAREP_TIMEOUT)
constexpr std::chrono::milliseconds accept_pause{100}; // if there is no descriptor for a connection
// A connection whose request does not come within this time may lose its place to another one.
constexpr std::chrono::milliseconds grace{100};

} // namespace

struct wire_listener::unknown final : wire_owner {
  explicit unknown(wire_listener& l) : of(l) {}
  void started(const iwarp::start_frame& f) override { of.take(*this, f); }
  void heard() override {}
  void ended(int) override { of.drop(*this); }
  wire_listener& of;
  const clock::time_point since = clock::now();
  std::shared_ptr<iwarp_wire> wire;
  std::list<std::unique_ptr<unknown>>::iterator self;
};

wire_listener::wire_listener(int socket, std::size_t most) : socket_(socket), most_(most) {}

wire_listener::~wire_listener() {
  engine::get().remove(*this);
  engine::get().forget(socket_);
}

void wire_listener::ready(std::uint32_t) {
  for (int turn = 0; turn < 64; ++turn) {
    if (unknown_.size() >= most_ && clock::now() < unknown_.front()->since + grace)
      return pause_until(unknown_.front()->since + grace);
    const int s = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (s < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        pause_until(clock::now() + accept_pause);
      return;
    }
    if (unknown_.size() >= most_)
      drop(*unknown_.front());
    auto& u = unknown_.emplace_back(std::make_unique<unknown>(*this));
    u->self = std::prev(unknown_.end());
    int error = 0;
    u->wire = iwarp_wire::accept(s, *u, error);
    if (!u->wire)
      unknown_.pop_back();
    else
      u->wire->expect(std::min<clock::duration>(patience, current().answer));
  }
}

// The connection stays in the queue, so the socket is ready all the time.
void wire_listener::pause_until(clock::time_point when) {
  paused_ = true;
  engine::get().change(socket_, 0);
  engine::get().schedule_at(*this, when);
}

void wire_listener::resume() {
  paused_ = false;
  engine::get().change(socket_, EPOLLIN);
}

void wire_listener::take(unknown& u, const iwarp::start_frame& f) {
  const auto w = u.wire;
  w->leave_owner();
  forget(u);
  requested(w, f);
}

// Nothing was sent to the peer, so the connection need not linger.
void wire_listener::drop(unknown& u) {
  u.wire->leave_owner();
  forget(u);
}

void wire_listener::forget(unknown& u) {
  if (paused_ && unknown_.size() >= most_)
    resume();
  unknown_.erase(u.self);
}

} // namespace soft
