// SPDX-License-Identifier: BSL-1.0
// SENDs of a queue pair.
#include "connecting.hpp"
#include "end.hpp"
#include "memory.hpp"

#include <asio_rdma/queue_pair.hpp>

#include <algorithm>

namespace perf {

using namespace asio_rdma;
using asio_rdma::access; // there is a function of that name, too

namespace {

/// Empty answers of the far side may be outstanding as often; see `far_sends`.
constexpr std::uint32_t credits = 16;

queue_pair_options send_options(std::uint32_t sends, std::uint32_t receives) {
  queue_pair_options o;
  o.send_depth = sends;
  o.receive_depth = receives;
  return o;
}

class near_sends : public near_end {
public:
  near_sends(const side& s, const request& r, const memory_limits& m)
      : near_end(s.io),
        side_(s),
        latency_(r.of == metric::latency),
        memory_(s, r, latency_ ? 2 : slots(r, m), access::local_write),
        qp_(s.io) {
    check_length(s, r);
    qp_.open(s.pd, s.queue(r.how), send_options(r.window + 2, credits));
    for (std::uint32_t i = 0; i < (latency_ ? 2 : credits); ++i)
      receive();
  }

  awaitable<void> connect(const offer& to) override {
    room_ = to.numbers[0];
    group_ = to.numbers[1];
    if (!latency_ && (group_ == 0 || group_ > room_))
      throw session_error("the other side has no room for an operation");
    co_await connect_to(side_, qp_, to.where);
  }
  bool can_start() const override { return started_ - credited_ < room_; }
  void start() override {
    qp_.async_send(memory_[started_++], counted([this](std::size_t) {
                     if (!latency_)
                       completed();
                   }));
  }

private:
  void stop() override { qp_.close(); }

  void receive() {
    const mutable_buffer to = latency_ ? memory_[1] : memory_.spare_byte();
    qp_.async_receive(to, counted([this](const received&) {
                        receive();
                        if (latency_)
                          return completed();
                        credited_ += group_;
                        changed();
                      }));
  }

  const side& side_;
  const bool latency_;
  region_slots memory_;
  queue_pair qp_;
  std::uint64_t started_ = 0, credited_ = 0, room_ = 0, group_ = 0;
};

/// A SEND without a posted receive would be retried, or end the connection (iWARP). So the far side
/// answers a group of receives, when they are posted again, by an empty message.
class far_sends : public far_end {
public:
  far_sends(const side& s, const request& r, const memory_limits& m)
      : far_end(s.io),
        side_(s),
        size_(r.size),
        latency_(r.of == metric::latency),
        memory_(s, r, latency_ ? 2 : slots(r, m), access::local_write),
        qp_(s.io),
        door_(s) {
    check_length(s, r);
    const std::uint32_t wanted = latency_ ? 4 : 2 * r.window;
    qp_.open(s.pd, s.queue(r.how), send_options(credits, wanted));
    receives_ = std::min(wanted, qp_.options().receive_depth);
    // A quarter, so at most five answers are outstanding.
    group_ = std::max<std::uint32_t>(1, receives_ / 4);
    for (std::uint32_t i = 0; i < receives_; ++i)
      receive(i);
  }

  offer listening() const override { return {door_.where(), {receives_, group_, 0}}; }
  awaitable<void> accept() override { co_await door_.accept(qp_); }

private:
  void stop() override {
    qp_.close();
    door_.close();
  }

  void receive(std::uint64_t slot) {
    qp_.async_receive(memory_[slot], counted([this, slot](const received& r) {
                        if (r.bytes != size_)
                          return fail(asio_rdma::error::protocol_violation);
                        receive(slot);
                        if (latency_)
                          return answer(memory_[slot + 1]);
                        if (++received_ % group_ == 0)
                          answer(memory_.spare_byte());
                        add_arrived(r.bytes);
                      }));
  }
  void answer(const mutable_buffer& what) {
    qp_.async_send(what, counted([](std::size_t) {}));
  }

  const side& side_;
  const std::uint64_t size_;
  const bool latency_;
  region_slots memory_;
  queue_pair qp_;
  door door_;
  std::uint32_t receives_ = 0, group_ = 1;
  std::uint64_t received_ = 0;
};

} // namespace

std::unique_ptr<near_end> near_send(const side& s, const request& r, const memory_limits& m) {
  return std::make_unique<near_sends>(s, r, m);
}
std::unique_ptr<far_end> far_send(const side& s, const request& r, const memory_limits& m) {
  return std::make_unique<far_sends>(s, r, m);
}

} // namespace perf
