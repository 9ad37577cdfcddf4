// SPDX-License-Identifier: BSL-1.0
// Queue pairs with shared receives end on adapters that report their last receive late, only
// sometimes, or never. Each has taken receives that it has not filled, and the adapter drops the
// completions of a destroyed queue pair.
#include "device/adapters/adapter.hpp"
#include "device/adapters/every_receive.hpp"
#include "device/link/shared_crowd.hpp"
#include "link/shared_receives_impl.hpp"
#include "verbs/device_listeners.hpp"

#include <asio_rdma/stream.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace test::unreported_ends_tests {
namespace {

// The adapter neither completes the receives that a queue pair has taken, nor reports the last one.
constexpr const char* never = "mlx5,create=0,destroy=0,taken_receives=2,late_last_wqe=3600s";
constexpr const char* soon = "mlx5,create=0,destroy=0,taken_receives=2,late_last_wqe=1ms";
constexpr std::uint32_t depth = 16;

/// Receives of a shared queue, each started again when it completes, and the queue pairs that use
/// them.
struct scene {
  explicit scene(int threads = 1) : io(threads) {
    shared_receive_queue_options o;
    o.depth = depth;
    queue.open(pd, {}, o);
    for (std::uint32_t i = 0; i < depth; ++i)
      receive(i);
  }

  void receive(std::uint32_t i) {
    queue.async_receive(m.buffer(i * 8, 8), [this, i](error_code ec, const received&) {
      if (ec != asio::error::operation_aborted)
        receive(i);
    });
  }
  queue_pair& open() {
    from.emplace_back(other).open(pd);
    to.emplace_back(io).open(pd, queue);
    test::connect(other, from.back(), to.back());
    return to.back();
  }
  void open_and_close(int number) {
    for (; number != 0; --number) {
      open().close();
      from.back().close();
    }
  }
  std::uint32_t unconfirmed() const { return queue.impl()->unconfirmed(); }
  /// The number of messages that find a receive.
  std::uint32_t count() { return count_receives(io, pd, dev, queue.impl(), depth + 1); }

  asio::io_context io, other{1};
  device dev = open_device();
  protection_domain pd{dev};
  memory m{pd, depth * 8, most_rights(dev)};
  shared_receive_queue queue{io};
  std::deque<queue_pair> from, to;
};

bool is_in_error(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  return ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR;
}

/// Counts the queue pairs that are in the error state when the first of them has its last receive.
class first_report final : public detail::device_listener {
public:
  first_report(const device& d, std::vector<ibv_qp*> all) : device_(d), all_(std::move(all)) {
    device_.listeners().add(*this);
  }
  ~first_report() { device_.listeners().remove(*this); }

  void on_event(const ibv_async_event& event, detail::notified_objects&) noexcept override {
    if (event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED || reported)
      return;
    reported = true;
    in_error = std::count_if(all_.begin(), all_.end(), is_in_error);
  }

  bool reported = false;
  std::ptrdiff_t in_error = 0;

private:
  device device_;
  std::vector<ibv_qp*> all_;
};

} // namespace

TEST_CASE("an adapter whose first report of a last receive is late loses no shared receive",
          "[h1]") {
  const adapter a("mlx5,create=0,destroy=0,taken_receives=2,late_last_wqe=300ms");
  scene s;
  s.open_and_close(1);
  CHECK(s.unconfirmed() == 0);
  CHECK(s.dev.listeners().last_receives_missed() == 0);
  s.io.poll();
  CHECK(s.count() == depth);
}

TEST_CASE("an adapter that has missed a report is waited for later", "[h1]") {
  adapter a(never);
  scene s;
  s.open_and_close(1);
  CHECK(s.unconfirmed() == 1);
  queue_pair& stays = s.open(); // so the queue is not made anew
  a.become(soon);
  s.open_and_close(2);
  CHECK(s.dev.listeners().last_receives_missed() == 1);
  CHECK(s.unconfirmed() == 0); // the first queue pair that was opened alone restored the receives
  stays.close();
  s.io.poll();
  CHECK(s.count() == depth);
}

TEST_CASE("queue pairs whose last receive is never reported do not empty a shared receive queue",
          "[h1]") {
  const adapter a(never);
  scene s;
  const auto before = device_objects();
  // Each takes two receives for ever: without new ones, the queue would be empty after 8.
  s.open_and_close(12);
  CHECK(s.unconfirmed() == 1);
  CHECK(s.count() == depth);
  CHECK(device_objects() == before);
}

TEST_CASE("receives that an adapter has lost stay lost while a queue pair of their queue is open",
          "[h1]") {
  const adapter a(never);
  scene s;
  queue_pair& stays = s.open();
  s.open_and_close(1); // has taken two
  CHECK(s.unconfirmed() == 1);
  CHECK(s.count() == depth - 2);
  stays.close();
  s.open_and_close(1);
  s.io.poll();
  CHECK(s.count() == depth);
}

TEST_CASE("queue pairs that an adapter flushes without a report leave each shared receive",
          "[h1]") {
  const adapter a("mlx5,create=0,destroy=0,taken_receives=2,late_last_wqe=10ms,no_last_wqe=1");
  scene s;
  queue_pair& stays = s.open(); // so the queue is not made anew
  s.open_and_close(3);
  CHECK(s.unconfirmed() == 3);
  s.io.poll();
  CHECK(s.count() == depth);
  stays.close();
}

TEST_CASE("receives that an adapter has lost are counted, and restored by a link that opens alone",
          "[h1]") {
  const adapter a(never);
  constexpr std::uint32_t receives = 96;
  talks c(3, few(receives));
  const auto work = asio::make_work_guard(c.io);
  const auto ended = [&] {
    return c.of_a.statistics().links == 0 && c.of_b.statistics().links == 0;
  };
  for (asio_rdma::connection& link : c.b)
    link.close();
  c.a.clear();
  c.b.clear();
  c.until(ended);
  CHECK(c.of_a.statistics().unconfirmed == 3);
  CHECK(c.of_b.statistics().unconfirmed == 3);
  c.connect(c.a.emplace_back(c.io, c.of_a), c.b.emplace_back(c.io, c.of_b));
  CHECK(c.of_a.statistics().unconfirmed == 0);
  CHECK(c.of_b.statistics().unconfirmed == 0);
  CHECK(c.of_b.statistics().posted == receives);
  c.carries(c.a[0], c.b[0], 3000, 1);
  c.carries(c.b[0], c.a[0], 3000, 2);
  c.a[0].close();
  c.b[0].close();
  c.a.clear();
  c.b.clear();
  c.until(ended);
  for (const auto* r : {&c.of_a, &c.of_b})
    CHECK(count_receives(c.io, c.pd, c.dev, r->impl()->queue(), receives + 1) == receives);
}

TEST_CASE("a wait for the limit of a shared receive queue survives lost receives", "[h1]") {
  adapter a(never);
  scene s;
  s.open_and_close(1);
  outcome<void> limit;
  s.queue.async_wait_limit(depth / 2, limit.handler());
  a.become("mlx5,create=0,destroy=0"); // takes no receives
  queue_pair& to = s.open();
  REQUIRE(s.unconfirmed() == 0);
  std::deque<sent> sends;
  const memory text(s.pd, 8, most_rights(s.dev));
  for (std::uint32_t i = 0; i <= depth / 2; ++i)
    s.from.back().async_send(text.buffer(0, 8), sends.emplace_back().handler());
  until(s.other, [&] { return sends.back().done(); });
  until(s.io, [&] { return limit.done(); });
  CHECK(limit.ec == error_code());
  to.close();
}

// A further queue pair refuses a request of its peer's.
queue_pair& refuse_write(scene& s, const memory& text) {
  queue_pair& to = s.open();
  remote_buffer beyond = text.remote();
  beyond.address += std::uint64_t(1) << 40;
  s.from.back().async_write(text.buffer(), beyond, [](error_code, std::size_t) {});
  return to;
}

// An end that waits for a report that does not come takes a second.
template <class End>
void end_unconfirmed(scene& s, End end, std::uint32_t number = 1) {
  const std::uint32_t before = s.unconfirmed();
  for (std::uint32_t i = 0; i != number; ++i) {
    end();
    until(s.io, [&] { return s.unconfirmed() == before + i + 1; });
  }
}
template <class End>
void take_less_than_a_second(scene& s, End end) {
  const auto begun = std::chrono::steady_clock::now();
  end_unconfirmed(s, end, 5);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(1));
}

TEST_CASE("an adapter that reports errors in place of last receives is waited for once", "[h1]") {
  adapter a("bnxt_re,taken_receives=1");
  scene s;
  queue_pair& stays = s.open(); // so the queue is not made anew
  s.open_and_close(1);          // is reported
  CHECK(s.unconfirmed() == 0);
  const memory text(s.pd, 8, most_rights(s.dev));
  const auto fail = [&] {
    queue_pair& to = s.open();
    a.become("bnxt_re,taken_receives=1,fail=send:1:retry");
    to.async_send(text.buffer(), [](error_code, std::size_t) {});
  };
  const auto refuse = [&] {
    refuse_write(s, text);
  };
  end_unconfirmed(s, fail);
  SECTION("its request fails") { take_less_than_a_second(s, fail); }
  SECTION("a request of the peer's is refused") { take_less_than_a_second(s, refuse); }
  CHECK(s.dev.listeners().last_receives_missed() == 0);
  a.become("bnxt_re,taken_receives=1,late_last_wqe=200ms");
  const std::uint32_t before = s.unconfirmed();
  s.open_and_close(1); // waits
  CHECK(s.unconfirmed() == before);
  s.io.poll();
  CHECK(s.count() == depth);
  stays.close();
}

TEST_CASE("an adapter that reports errors and last receives loses none", "[h1]") {
  adapter a("mlx5,create=0,destroy=0,taken_receives=1,late_last_wqe=200ms");
  scene s;
  queue_pair& stays = s.open(); // so the queue is not made anew
  const memory text(s.pd, 8, most_rights(s.dev));
  for (int i = 0; i < 2; ++i) {
    queue_pair& to = refuse_write(s, text);
    until(s.io, [&] { return to.state() == queue_pair_state::failed; });
    s.io.poll(); // the teardown
    to.close();
  }
  CHECK(s.unconfirmed() == 0);
  CHECK(s.count() == depth);
  stays.close();
}

TEST_CASE("an adapter that reports last receives no more is waited for once", "[h1]") {
  adapter a(soon);
  scene s;
  queue_pair& stays = s.open();
  s.open_and_close(1);
  CHECK(s.unconfirmed() == 0);
  a.become("mlx5,create=0,destroy=0,taken_receives=0,late_last_wqe=3600s");
  s.open_and_close(1);
  CHECK(s.unconfirmed() == 1);
  take_less_than_a_second(s, [&] { s.open_and_close(1); });
  stays.close();
}

TEST_CASE("queue pairs that fail together wait together for their last receives", "[h1]") {
  const adapter a("mlx5,create=0,destroy=0,taken_receives=1,late_last_wqe=100ms");
  scene s;
  constexpr int number = 8;
  std::vector<ibv_qp*> all;
  for (int i = 0; i < number; ++i)
    all.push_back(s.open().native_handle());
  first_report report(s.dev, all);
  for (queue_pair& qp : s.to) {
    qp.impl()->fail(asio::error::connection_reset);
  }
  until(s.io, [&] { return report.reported; });
  CHECK(report.in_error == number);
  CHECK(s.unconfirmed() == 0);
  for (queue_pair& qp : s.to)
    qp.close();
  s.io.poll();
  CHECK(s.count() == depth);
}

TEST_CASE("queue pairs that fail together wait together for reports that never come", "[h1]") {
  const adapter a(never);
  scene s;
  s.open_and_close(1); // from now on 50 ms are enough
  s.to.clear();
  constexpr int number = 24;
  constexpr std::chrono::milliseconds each(50);
  for (int i = 0; i < number; ++i)
    s.open();
  for (queue_pair& qp : s.to)
    qp.impl()->fail(asio::error::connection_reset);
  const auto begun = std::chrono::steady_clock::now();
  until(s.io, [&] { return s.unconfirmed() == number; });
  CHECK(std::chrono::steady_clock::now() - begun < number * each);
  for (queue_pair& qp : s.to)
    qp.close();
  s.open_and_close(1); // restores the receives
  CHECK(s.count() == depth);
}

TEST_CASE("the end of shared receives and of a context waits for no last receive", "[h1]") {
  const adapter a(never);
  const device dev = open_device();
  const auto before = device_objects();
  {
    asio::io_context io(1), other(1);
    const protection_domain pd(dev);
    struct objects {
      shared_receive_queue queue;
      std::deque<queue_pair> from, to;
    };
    auto all = std::make_shared<objects>(objects{shared_receive_queue(io, pd), {}, {}});
    for (int i = 0; i < 3; ++i) {
      all->from.emplace_back(other).open(pd);
      all->to.emplace_back(io).open(pd, all->queue);
      test::connect(other, all->from.back(), all->to.back());
    }
    SECTION("the receives end first") { all->queue.close(); }
    SECTION("the context ends first") {
      all->from.clear();
      asio::post(io, [all] {}); // destroyed with the context
    }
    all.reset();
  }
  CHECK(dev.listeners().last_receives_missed() == 0);
  CHECK(device_objects() == before);
}

TEST_CASE("streams that a context ends with shared receives wait for no last receive", "[h1]") {
  const adapter a(never);
  const auto before = device_objects();
  device used;
  {
    asio::io_context other(1);
    memory_pool pool{protection_domain(open_device())};
    asio_rdma::stream reader(other);
    reader.open(pool);
    crowd<asio_rdma::stream> c(3);
    used = c.dev;
    stream_options o;
    o.linger = std::chrono::milliseconds(200);
    asio_rdma::stream writer(c.io);
    writer.open(c.of_a, o);
    test::connection accepted, connected;
    c.listener.async_accept(reader, accepted.handler());
    c.initiator.async_connect(writer, c.listener.local_endpoint(), connected.handler());
    c.until([&] {
      other.restart();
      other.poll();
      return accepted.done() && connected.done();
    });
    const std::vector<char> text(1 << 20);
    asio::async_write(writer, asio::buffer(text), [](error_code, std::size_t) {});
    // The reader's context does not run, so the writer lingers while the context ends. Meanwhile
    // the other streams say goodbye.
  }
  CHECK(used.listeners().last_receives_missed() == 0);
  used = {};
  CHECK(device_objects() == before);
}

TEST_CASE("queue pairs open and end in several threads while an adapter loses receives", "[h1]") {
  const adapter a("mlx5,create=0,destroy=0,taken_receives=1,late_last_wqe=1ms,no_last_wqe=1");
  scene s(2);
  auto work = std::make_optional(asio::make_work_guard(s.io));
  std::thread runs([&] { s.io.run(); });
  std::atomic<int> arrived{0};
  constexpr int rounds = 5;
  const auto open_and_end = [&] {
    asio::io_context io(1);
    for (int i = 0; i < rounds; ++i) {
      queue_pair from(io), to(s.io);
      from.open(s.pd);
      to.open(s.pd, s.queue);
      test::connect(io, from, to);
      const memory text(s.pd, 8, most_rights(s.dev));
      sent one;
      from.async_send(text.buffer(0, 8), one.handler());
      until(io, [&] { return one.done(); });
      arrived += one.ec ? 0 : 1;
      if (i % 2 == 0)
        to.cancel(); // its teardown runs there
    }
  };
  std::thread first(open_and_end), second(open_and_end);
  first.join();
  second.join();
  work.reset();
  s.io.stop();
  runs.join();
  CHECK(arrived == 2 * rounds);
  s.io.restart();
  s.io.poll();
  CHECK(s.count() == depth);
}

} // namespace test::unreported_ends_tests
