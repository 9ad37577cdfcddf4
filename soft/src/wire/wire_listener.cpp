// SPDX-License-Identifier: BSL-1.0
#include "wire/wire_listener.hpp"

#include <sys/socket.h>
#include <unistd.h>

namespace soft {
namespace {

constexpr std::chrono::seconds patience{10}; // for a request

} // namespace

struct wire_listener::unknown final : wire_owner, task {
  explicit unknown(wire_listener& l) : of(l) {}
  ~unknown() { engine::get().remove(*this); }
  void started(const iwarp::start_frame& f) override { of.take(*this, f); }
  void heard() override {}
  void ended(int) override { of.drop(*this); }
  void run() override { of.drop(*this); } // too late
  wire_listener& of;
  std::shared_ptr<iwarp_wire> wire;
  std::list<std::unique_ptr<unknown>>::iterator self;
};

wire_listener::wire_listener(int socket, std::size_t most) : socket_(socket), most_(most) {}

wire_listener::~wire_listener() { engine::get().forget(socket_); }

void wire_listener::ready(std::uint32_t) {
  for (int turn = 0; turn < 64; ++turn) {
    const int s = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (s < 0)
      return; // without a descriptor it waits for the next connection
    if (unknown_.size() >= most_) {
      close(s);
      continue;
    }
    auto& u = unknown_.emplace_back(std::make_unique<unknown>(*this));
    u->self = std::prev(unknown_.end());
    int error = 0;
    u->wire = iwarp_wire::accept(s, *u, error);
    if (!u->wire)
      unknown_.pop_back();
    else
      engine::get().schedule_at(*u, clock::now() + patience);
  }
}

void wire_listener::take(unknown& u, const iwarp::start_frame& f) {
  const auto w = u.wire;
  w->leave_owner();
  unknown_.erase(u.self);
  requested(w, f);
}

void wire_listener::drop(unknown& u) {
  const auto w = u.wire;
  w->leave_owner();
  unknown_.erase(u.self);
  w->close();
}

} // namespace soft
