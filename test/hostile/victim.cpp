// SPDX-License-Identifier: BSL-1.0
// The process that is attacked: servers of connections, streams and a global memory, with the
// library's defaults.
#include "hostile/victim.hpp"
#include "device/global/global_support.hpp"
#include "device/support/child_process.hpp"
#include "device/support/long_run.hpp"
#include "hostile/machine.hpp"
#include "hostile/report.hpp"

#include <asio_rdma/alock.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <malloc.h>
#include <memory>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>

namespace test {
namespace {

constexpr const char* variable = "HOSTILE_REPORT";
constexpr auto token = asio::as_tuple(asio::use_awaitable);

std::uint64_t clock_ns(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

/// Blocks of the pool with a pattern, and holes between them, so that a grant has guarded memory on
/// both sides.
class guard {
public:
  explicit guard(const memory_pool& pool) {
    std::vector<registered_buffer> all;
    for (int i = 0; i < 64; ++i)
      all.push_back(pool.allocate(guarded_block));
    for (std::size_t i = 0; i < all.size(); i += 2) {
      std::fill_n(static_cast<std::uint8_t*>(all[i].data()), guarded_block, pattern);
      blocks_.push_back(all[i]);
    }
  }
  std::uint64_t damaged() const {
    std::ptrdiff_t result = 0;
    for (const registered_buffer& b : blocks_) {
      const auto* const p = static_cast<const volatile std::uint8_t*>(b.data());
      result += std::count_if(p, p + guarded_block, [](std::uint8_t x) { return x != pattern; });
    }
    return static_cast<std::uint64_t>(result);
  }
  const registered_buffer& first() const { return blocks_.front(); }

private:
  static constexpr std::uint8_t pattern = 0x5a;
  std::vector<registered_buffer> blocks_;
};

class victim {
public:
  explicit victim(shared_report& r) : report_(r) {
    options_.remote_memory.bytes = victim_grants; // otherwise there are no grants to attack
    node_.host(segment_bytes);
    node_.listen(own_endpoint());
    messages_.open(own_endpoint());
    bytes_.open(own_endpoint());
    admitting_.open(own_endpoint());
    report_->pool_limit = pool_.limit();
    report_->messages_port = messages_.local_endpoint().port();
    report_->bytes_port = bytes_.local_endpoint().port();
    report_->admitted_port = admitting_.local_endpoint().port();
    report_->nodes_port = node_.local_endpoint().port();
    report_->guarded_address = reinterpret_cast<std::uintptr_t>(guard_.first().data());
    report_->guarded_key = guard_.first().lkey(); // the software devices have one key for both
    asio::co_spawn(io_, accept<asio_rdma::connection>(messages_), rethrow);
    asio::co_spawn(io_, accept<asio_rdma::stream>(bytes_), rethrow);
    for (int i = 0; i < 4; ++i)
      asio::co_spawn(io_, admit(), rethrow);
    asio::co_spawn(io_, lock(), rethrow);
    tick();
  }
  void run() { io_.run(); }

private:
  struct asio_rethrow {
    void operator()(std::exception_ptr e) const {
      if (e)
        std::rethrow_exception(e);
    }
  };

  // Each request has a coroutine of its own (SECURITY.md).
  template <class Object>
  asio::awaitable<void> accept(acceptor& from) {
    for (;;) {
      auto [ec, request] = co_await from.async_wait_request(token);
      if (!ec)
        asio::co_spawn(io_, serve<Object>(from, std::move(request)), rethrow);
    }
  }
  template <class Object>
  asio::awaitable<void> serve(acceptor& from, connection_request request) {
    const auto object = std::make_shared<Object>(io_);
    error_code ec;
    if constexpr (std::same_as<Object, asio_rdma::connection>)
      object->open(pool_, options_, ec);
    else
      object->open(pool_, stream_options(), ec);
    if (ec) {
      ++report_->turned_away;
      co_return;
    }
    const auto [failure, info] = co_await from.async_accept(std::move(request), *object, token);
    if (failure)
      co_return;
    ++report_->accepted;
    co_await echo(object);
  }

  /// Admits no connector.
  asio::awaitable<void> admit() {
    for (;;) {
      asio_rdma::connection c(io_, pool_);
      const auto none = accept_options().set_admit([](auto&&...) { return false; });
      const auto [ec, info] = co_await admitting_.async_accept(c, none, token);
      report_->unadmitted += ec ? 0U : 1U;
    }
  }

  asio::awaitable<void> echo(std::shared_ptr<asio_rdma::connection> c) {
    for (;;) {
      auto [ec, m] = co_await c->async_receive(token);
      report_->fatal += ec == error::queue_pair_fatal ? 1U : 0U;
      if (ec)
        co_return;
      if (m.text().starts_with(borrow_command))
        asio::co_spawn(io_, borrow(c), rethrow);
      if (m.text().starts_with(receives_command))
        for (std::uint32_t i = 1; i < options_.receives; ++i)
          asio::co_spawn(io_, echo(c), rethrow);
      const auto [failure, n] = co_await c->async_send(m, token);
      if (failure)
        co_return;
    }
  }
  /// Requests memory of the peer, writes to it, and releases it.
  asio::awaitable<void> borrow(std::shared_ptr<asio_rdma::connection> c) {
    auto [ec, region] = co_await c->async_request_memory(4096, token);
    if (!ec)
      co_await c->async_write(asio::buffer("lent", 4), region.slice(0), token);
    ++report_->borrowed;
  }

  asio::awaitable<void> echo(std::shared_ptr<asio_rdma::stream> s) {
    std::vector<char> memory(16384);
    for (;;) {
      const auto [ec, n] = co_await s->async_read_some(asio::buffer(memory), token);
      if (ec)
        co_return;
      const auto [failure, m] =
          co_await asio::async_write(*s, asio::buffer(memory.data(), n), token);
      if (failure)
        co_return;
    }
  }

  /// Takes two locks of the segment in turn. Peers attack the first.
  asio::awaitable<void> lock() {
    remote_ptr<alock_words> places[2];
    for (auto& p : places) {
      const auto [ec, at] = co_await node_.async_allocate<alock_words>(host_id, 0, token);
      if (ec)
        throw system_error(ec, "allocate");
      p = at;
    }
    report_->attacked_lock = places[0].offset();
    report_->state = hostile_report::ready;
    alock attacked(node_, places[0]), other(node_, places[1]);
    asio::steady_timer pause(io_);
    std::size_t lost = 0;
    for (;;) {
      if (lost < 100) { // each leaves a party in the queue
        asio::cancellation_signal stop;
        asio::steady_timer patience(io_, std::chrono::milliseconds(50));
        patience.async_wait([&stop](error_code e) {
          if (!e)
            stop.emit(asio::cancellation_type::all);
        });
        auto [ec, held] =
            co_await attacked.async_lock(asio::bind_cancellation_slot(stop.slot(), token));
        patience.cancel();
        lost += ec ? 1U : 0U;
        held.unlock();
        co_await asio::post(io_, asio::use_awaitable); // the timer's handler uses the signal
      }
      auto [ec, held] = co_await other.async_lock(token);
      report_->locked += ec ? 0U : 1U;
      held.unlock();
      pause.expires_after(std::chrono::milliseconds(1));
      co_await pause.async_wait(token);
    }
  }

  /// The default, but less in the lab: a device of the kernel answers the READs of a stopped
  /// process, so peers there can use up all of the limit.
  static std::size_t limit(const device& d) {
    return is_kernels(d) ? 512 << 20 : memory_pool_options().limit;
  }

  void tick() {
    const std::uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), now = clock_ns(CLOCK_MONOTONIC),
                        late = report_->late_ns, waited = wait_.total_ns();
    if (last_.now != 0) {
      // Each thread's waits are subtracted, as they are no work of the context.
      note(report_->busy_ns, cpu - last_.cpu, late - last_.late);
      note(report_->gap_ns, now - last_.now, std::max(late - last_.late, waited - last_.waited));
    }
    if (const std::uint64_t wish = report_->measure; wish != report_->measured) {
      report_->damaged = guard_.damaged();
      pool_.trim();
      ::malloc_trim(0);
      report_->resident = resident_bytes();
      report_->heap = heap_bytes();
      report_->measured = wish;
    }
    report_->pooled = pool_.statistics().bytes_in_use;
    raise(report_->most_pooled, report_->pooled);
    for (const acceptor* a : {&messages_, &bytes_})
      raise(report_->most_handshakes, a->statistics().handshakes);
    ++report_->ticks;
    last_ = {clock_ns(CLOCK_THREAD_CPUTIME_ID), clock_ns(CLOCK_MONOTONIC), report_->late_ns,
             wait_.total_ns()};
    timer_.expires_after(hostile_report::tick);
    timer_.async_wait([this](error_code) { tick(); });
  }
  static void note(std::atomic<std::uint64_t>& longest, std::uint64_t took, std::uint64_t not_run) {
    const std::uint64_t own = took > not_run ? took - not_run : 0;
    raise(longest, own);
  }
  static void raise(std::atomic<std::uint64_t>& most, std::uint64_t now) {
    if (now > most)
      most = now;
  }
  static std::uint64_t heap_bytes() {
    const struct mallinfo2 all = ::mallinfo2();
    return all.uordblks + all.hblkhd;
  }

  shared_report& report_;
  asio_rethrow rethrow;
  asio::io_context io_;
  device dev_ = open_device();
  memory_pool pool_{protection_domain(dev_), memory_pool_options().set_limit(limit(dev_))};
  guard guard_{pool_};
  connection_options options_;
  acceptor messages_{io_}, bytes_{io_}, admitting_{io_};
  global_memory node_{io_, pool_, host_id};
  asio::steady_timer timer_{io_};
  processor_wait wait_;
  machine_watch watch_{wait_, report_->late_ns, report_->waited_ns};
  struct {
    std::uint64_t cpu = 0, now = 0, late = 0, waited = 0;
  } last_;
};

} // namespace

std::vector<std::string> victim_variables(const shared_report& r) {
  return {std::string(variable) + "=" + std::to_string(r.descriptor())};
}

TEST_CASE("the victim of hostile peers", "[.victim]") {
  const int descriptor = child_process::variable(variable);
  if (descriptor < 0)
    return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL); // it ends with its tester
  shared_report report(descriptor);
  try {
    victim(report).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "victim: %s\n", e.what());
    report->state = hostile_report::failed;
    throw;
  }
}

} // namespace test
