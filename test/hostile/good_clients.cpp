// SPDX-License-Identifier: BSL-1.0
#include "hostile/good_clients.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>

namespace test {
namespace {

constexpr auto token = asio::as_tuple(asio::use_awaitable);

} // namespace

good_clients::good_clients(shared_report& victim) : victim_(victim) {
  asio::co_spawn(io_, messages(), asio::detached);
  asio::co_spawn(io_, bytes(), asio::detached);
  asio::co_spawn(io_, memory(), asio::detached);
  thread_ = std::thread([this] {
    wait_.emplace();
    const machine_watch watch(*wait_, late_, waited_);
    io_.run();
  });
}

good_clients::~good_clients() {
  over_ = true;
  io_.stop(); // a client may wait for a victim that does not answer
  thread_.join();
}

std::uint64_t good_clients::rounds() const noexcept {
  return std::min({rounds_[0].load(), rounds_[1].load(), rounds_[2].load()});
}

std::string good_clients::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

asio::ip::tcp::endpoint good_clients::at(std::uint32_t port) const {
  return {device_address(dev_), static_cast<std::uint16_t>(port)};
}

good_clients::moment good_clients::now() const {
  const std::chrono::nanoseconds ns = std::chrono::steady_clock::now().time_since_epoch();
  return {victim_->ticks,
          static_cast<std::uint64_t>(ns.count()),
          victim_->late_ns,
          victim_->waited_ns,
          late_,
          wait_->total_ns()};
}

void good_clients::longest::add(const moment& from, const moment& to) noexcept {
  const std::uint64_t not_run =
      std::max(to.late - from.late, to.waited - from.waited) +
      std::max(to.own_late - from.own_late, to.own_waited - from.own_waited);
  ticks_ = std::max(ticks_.load(), to.ticks - from.ticks);
  ns_ = std::max(ns_.load(), to.ns - from.ns - std::min(to.ns - from.ns, not_run));
}

bool good_clients::passed(const moment& began, const error_code& ec, const char* what) {
  longest_.add(began, now());
  const std::lock_guard lock(mutex_);
  if (ec && failure_.empty() && !over_)
    failure_ = std::string(what) + ": " + describe(ec);
  return !ec;
}

bool good_clients::connected(const moment& began, const error_code& ec, const char* what) {
  longest_connect_.add(began, now());
  return passed(began, ec, what);
}

asio::awaitable<void> good_clients::messages() {
  for (; !over_; ++rounds_[0]) {
    asio_rdma::connection c(io_, pool_);
    moment began = now();
    const auto [ec, info] = co_await connector_.async_connect(c, at(victim_->messages_port), token);
    if (!connected(began, ec, "connect"))
      co_return;
    for (const std::size_t bytes :
         {std::size_t(100), std::size_t(7000), std::size_t(50'000), std::size_t(300'000)}) {
      const auto out = pattern(bytes, 1);
      began = now();
      const auto [not_sent, n] = co_await c.async_send(asio::buffer(out), token);
      if (!passed(began, not_sent, "send"))
        co_return;
      began = now();
      const auto [not_received, m] = co_await c.async_receive(token);
      if (!passed(began, not_received, "receive"))
        co_return;
      if (m.size() != bytes || !is_pattern(m.payload.data(), bytes, 1))
        passed(began, error::protocol_violation, "other bytes came back");
    }
  }
}

asio::awaitable<void> good_clients::bytes() {
  const auto out = pattern(20'000, 2);
  for (; !over_; ++rounds_[1]) {
    asio_rdma::stream s(io_, pool_);
    moment began = now();
    const auto [ec, info] = co_await connector_.async_connect(s, at(victim_->bytes_port), token);
    if (!connected(began, ec, "connect a stream"))
      co_return;
    std::vector<std::uint8_t> back(out.size());
    began = now();
    const auto [not_written, n] = co_await asio::async_write(s, asio::buffer(out), token);
    if (!passed(began, not_written, "write"))
      co_return;
    began = now();
    const auto [not_read, m] = co_await asio::async_read(s, asio::buffer(back), token);
    if (!passed(began, not_read, "read"))
      co_return;
    if (back != out)
      passed(began, error::protocol_violation, "other bytes came back");
  }
}

asio::awaitable<void> good_clients::memory() {
  moment began = now();
  const auto [ec, host] = co_await node_.async_join(at(victim_->nodes_port), token);
  if (!passed(began, ec, "join"))
    co_return;
  asio::steady_timer pause(io_);
  for (std::uint64_t i = 1; !over_; ++i, ++rounds_[2]) {
    began = now();
    const auto [none, p] = co_await node_.async_allocate<std::uint64_t>(host_id, 0, token);
    if (!passed(began, none, "allocate"))
      co_return;
    began = now();
    const auto [not_written] = co_await node_.async_write(p, i, token);
    if (!passed(began, not_written, "write to global memory"))
      co_return;
    began = now();
    const auto [not_read, value] = co_await node_.async_read(p, token);
    if (!passed(began, not_read, "read of global memory"))
      co_return;
    if (value != i)
      passed(began, error::protocol_violation, "another value came back");
    began = now();
    const auto [not_freed] = co_await node_.async_free(p, token);
    if (!passed(began, not_freed, "free"))
      co_return;
    pause.expires_after(std::chrono::milliseconds(1));
    co_await pause.async_wait(token);
  }
}

} // namespace test
