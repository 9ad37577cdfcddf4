// SPDX-License-Identifier: BSL-1.0
// RDMA WRITEs and READs of a queue pair.
#include "connecting.hpp"
#include "end.hpp"
#include "memory.hpp"

#include <asio_rdma/queue_pair.hpp>

namespace perf {

using namespace asio_rdma;
using asio_rdma::access; // there is a function of that name, too

namespace {

queue_pair_options one_sided_options(std::uint32_t sends) {
  queue_pair_options o;
  o.send_depth = sends;
  o.receive_depth = 1;
  return o;
}

class near_one_sided_end : public near_end {
public:
  near_one_sided_end(const side& s, const request& r, const memory_limits& m)
      : near_end(s.io),
        side_(s),
        reads_(r.what == kind::read),
        size_(r.size),
        memory_(s, r, slots(r, m), access::local_write),
        qp_(s.io) {
    check_length(s, r);
    qp_.open(s.pd, s.queue(r.how), one_sided_options(r.window + 2));
  }

  awaitable<void> connect(const offer& to) override {
    there_ = {to.numbers[0], to.numbers[1], std::uint32_t(to.numbers[2])};
    if (there_.size < size_)
      throw session_error("the other side has no memory for an operation");
    co_await connect_to(side_, qp_, to.where);
    co_await touch(); // on iWARP the connecting side sends first
  }
  void start() override {
    const std::uint64_t i = started_++;
    const remote_buffer at = (there_ + i % (there_.size / size_) * size_).first(size_);
    auto done = counted([this](std::size_t) { completed(); });
    if (reads_)
      qp_.async_read(memory_[i], at, std::move(done));
    else
      qp_.async_write(memory_[i], at, std::move(done));
  }
  /// A WRITE of iWARP completes when its bytes were sent. A READ behind it waits for their arrival.
  awaitable<void> settle() override {
    if (!reads_)
      co_await touch();
  }

private:
  void stop() override { qp_.close(); }

  awaitable<void> touch() {
    co_await qp_.async_read(memory_.spare_byte(), there_.first(1), asio::use_awaitable);
  }

  const side& side_;
  const bool reads_;
  const std::uint64_t size_;
  region_slots memory_;
  queue_pair qp_;
  remote_buffer there_;
  std::uint64_t started_ = 0;
};

class far_one_sided_end : public far_end {
public:
  far_one_sided_end(const side& s, const request& r, const memory_limits& m)
      : far_end(s.io),
        memory_(s, r, slots(r, m), access::remote_write | access::remote_read),
        qp_(s.io),
        door_(s) {
    qp_.open(s.pd, s.queue(r.how), one_sided_options(1));
  }

  offer listening() const override {
    const remote_buffer all = memory_.remote();
    return {door_.where(), {all.address, all.size - 1, all.rkey}}; // without the spare byte
  }
  awaitable<void> accept() override { co_await door_.accept(qp_); }

private:
  void stop() override {
    qp_.close();
    door_.close();
  }

  region_slots memory_;
  queue_pair qp_;
  door door_;
};

} // namespace

std::unique_ptr<near_end> near_one_sided(const side& s, const request& r, const memory_limits& m) {
  return std::make_unique<near_one_sided_end>(s, r, m);
}
std::unique_ptr<far_end> far_one_sided(const side& s, const request& r, const memory_limits& m) {
  return std::make_unique<far_one_sided_end>(s, r, m);
}

} // namespace perf
