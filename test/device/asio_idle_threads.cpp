// SPDX-License-Identifier: BSL-1.0
// Handlers that block, throw or stop the context, beside idle threads: every kind of operation
// behaves as Asio's own operations do in the same program.
#include "catch.hpp"

#include "asio_support.hpp"
#include "connection_support.hpp"

#include <asio_rdma/stream.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace test;

namespace {

constexpr int count = 6;

using done = std::function<void()>;

/// Operations of one kind. `complete` makes all started operations complete.
class operations {
public:
  virtual ~operations() = default;
  virtual void start(done d) = 0;
  virtual void complete() = 0;
};

// Asio's own operations.

struct posted : operations {
  explicit posted(asio::io_context& c) : io(c) {}
  void start(done d) override { all.push_back(std::move(d)); }
  void complete() override {
    for (done& d : all)
      asio::post(io, std::move(d));
  }
  asio::io_context& io;
  std::vector<done> all;
};

struct timer_waits : operations {
  explicit timer_waits(asio::io_context& io) : timer(io, std::chrono::hours(1)) {}
  void start(done d) override {
    timer.async_wait([d = std::move(d)](error_code) { d(); });
  }
  void complete() override { timer.cancel(); }
  asio::steady_timer timer;
};

struct datagrams : operations {
  explicit datagrams(asio::io_context& io)
      : to(io, {asio::ip::address_v4::loopback(), 0}), from(io, asio::ip::udp::v4()) {}
  void start(done d) override {
    to.async_receive(asio::buffer(bytes), [d = std::move(d)](error_code, std::size_t) { d(); });
  }
  void complete() override {
    for (int i = 0; i < count; ++i)
      from.send_to(asio::buffer("x", 1), to.local_endpoint());
  }
  asio::ip::udp::socket to, from;
  char bytes[8];
};

struct tcp_accepts : operations {
  explicit tcp_accepts(asio::io_context& io) : listener(io, {asio::ip::tcp::v4(), 0}) {}
  void start(done d) override {
    listener.async_accept([d = std::move(d)](error_code, const auto&) { d(); });
  }
  void complete() override { listener.cancel(); }
  asio::ip::tcp::acceptor listener;
};

// Operations of the library.

struct queue_pairs : operations {
  queue_pairs(asio::io_context& io, completion_mode m)
      : q(io, g, completion_queue(io, g.dev, in_mode(m))) {}
  ground g;
  joined q;
};

struct receives : queue_pairs {
  using queue_pairs::queue_pairs;
  void start(done d) override {
    q.b.async_receive(g.part(1), [d = std::move(d)](error_code, received) { d(); });
  }
  void complete() override {
    for (int i = 0; i < count; ++i)
      q.a.async_send(g.part(0), asio::detached);
  }
};

struct writes : queue_pairs {
  using queue_pairs::queue_pairs;
  void start(done d) override { all.push_back(std::move(d)); }
  void complete() override {
    queue_pair::batch batch(q.a);
    for (done& d : all)
      q.a.async_write(g.part(0), g.remote_part(1),
                      [d = std::move(d)](error_code, std::size_t) { d(); });
  }
  std::vector<done> all;
};

struct closed_receives : receives {
  using receives::receives;
  void complete() override { q.b.close(); }
};

struct disconnect_waits : queue_pairs {
  using queue_pairs::queue_pairs;
  void start(done d) override {
    q.a.async_wait_disconnect([d = std::move(d)](error_code) { d(); });
  }
  void complete() override { q.a.cancel(); }
};

struct device_event_waits : operations {
  explicit device_event_waits(asio::io_context& io) : events(io, open_device()) {}
  void start(done d) override {
    events.async_wait_event([d = std::move(d)](error_code, device_event) { d(); });
  }
  void complete() override { events.cancel(); }
  device_events events;
};

struct accepts : operations {
  explicit accepts(asio::io_context& io) : listener(io, own_endpoint()) {
    for (int i = 0; i < count; ++i)
      accepted.emplace_back(io).open(pd);
  }
  void start(done d) override {
    listener.async_accept(accepted[next++],
                          [d = std::move(d)](error_code, const connection_info&) { d(); });
  }
  void complete() override { listener.cancel(); }
  protection_domain pd{open_device()};
  acceptor listener;
  std::deque<queue_pair> accepted;
  std::size_t next = 0;
};

struct access_waits : operations {
  explicit access_waits(asio::io_context& c) : io(c), writer(buffer.try_write_access()) {}
  void start(done d) override {
    buffer.async_read_access(io.get_executor(),
                             [d = std::move(d)](error_code, const buffer_access&) { d(); });
  }
  void complete() override { writer.reset(); }
  asio::io_context& io;
  memory_pool pool{protection_domain(open_device())};
  registered_buffer buffer = pool.allocate(64);
  buffer_access writer;
};

/// Two connections or streams. The context is run to connect them.
template <class Object>
void connect_both(asio::io_context& io, const memory_pool& pool, Object& a, Object& b) {
  acceptor listener(io, own_endpoint());
  connector initiator(io);
  test::connection accepted, connected;
  a.open(pool);
  b.open(pool);
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  until(io, [&] { return accepted.done() && connected.done(); });
  io.restart();
}

struct messages : operations {
  explicit messages(asio::io_context& io) : a(io), b(io) { connect_both(io, pool, a, b); }
  void start(done d) override {
    b.async_receive([d = std::move(d)](error_code, const message&) { d(); });
  }
  void complete() override {
    for (int i = 0; i < count; ++i)
      a.async_send(asio::buffer("x", 1), asio::detached);
  }
  memory_pool pool{protection_domain(open_device())};
  asio_rdma::connection a, b;
};

/// Each read is on its own stream, as a stream has one read at a time.
struct stream_reads : operations {
  explicit stream_reads(asio::io_context& io) {
    for (int i = 0; i < count; ++i) {
      a.emplace_back(io);
      b.emplace_back(io);
      connect_both(io, pool, a.back(), b.back());
    }
  }
  void start(done d) override {
    b[next++].async_read_some(asio::buffer(bytes),
                              [d = std::move(d)](error_code, std::size_t) { d(); });
  }
  void complete() override {
    for (stream& s : a)
      s.async_write_some(asio::buffer("x", 1), asio::detached);
  }
  memory_pool pool{protection_domain(open_device())};
  std::deque<stream> a, b;
  std::size_t next = 0;
  char bytes[8];
};

template <class Operations, class... Args>
auto make(Args... args) {
  return [=](asio::io_context& io) -> std::unique_ptr<operations> {
    return std::make_unique<Operations>(io, args...);
  };
}

struct kind {
  const char* name;
  std::function<std::unique_ptr<operations>(asio::io_context&)> make;
};

const kind kinds[] = {
    {"asio::post", make<posted>()},
    {"asio's timer", make<timer_waits>()},
    {"asio's datagrams", make<datagrams>()},
    {"asio's acceptor", make<tcp_accepts>()},
    {"receives, mode event", make<receives>(completion_mode::event)},
    {"receives, mode adaptive", make<receives>(completion_mode::adaptive)},
    {"receives, mode busy", make<receives>(completion_mode::busy)},
    {"writes, mode event", make<writes>(completion_mode::event)},
    {"writes, mode adaptive", make<writes>(completion_mode::adaptive)},
    {"writes, mode busy", make<writes>(completion_mode::busy)},
    {"receives of a queue pair that is closed", make<closed_receives>(completion_mode::event)},
    {"waits for a disconnect", make<disconnect_waits>(completion_mode::event)},
    {"waits for a device's events", make<device_event_waits>()},
    {"accepts", make<accepts>()},
    {"waits for access", make<access_waits>()},
    {"messages", make<messages>()},
    {"reads of streams", make<stream_reads>()},
};

/// The handlers that have begun, in their order.
class record {
public:
  void begin(int i) {
    const std::lock_guard lock(mutex_);
    begun_.push_back(i);
    changed_.notify_all();
  }
  /// Returns false only after a failure.
  bool wait_for(std::size_t n) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return begun_.size() >= n; });
  }
  std::vector<int> begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> begun_;
};

std::vector<int> all_in_order() {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

/// Threads that run a context. A thread that catches an exception does not run the context again.
class two_threads {
public:
  explicit two_threads(asio::io_context& io) : io_(io), work_(io.get_executor()) {
    for (int i = 0; i < 2; ++i)
      threads_.emplace_back([this] {
        try {
          io_.run();
        } catch (int) {
        }
      });
    for (int i = 0; i < 2; ++i) // both threads are in the context before any operation completes
      asio::post(io, [this] {
        there_.begin(0);
        there_.wait_for(2);
      });
    there_.wait_for(2);
  }
  ~two_threads() {
    work_.reset();
    io_.stop();
    for (std::thread& t : threads_)
      t.join();
  }

private:
  asio::io_context& io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  record there_;
  std::vector<std::thread> threads_;
};

} // namespace

TEST_CASE(
    "a handler that blocks until all others have begun does not keep an idle thread from them") {
  const kind k = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  constexpr int blocks = 1;
  for (int i = 0; i < count; ++i)
    ops->start([&r, i] {
      r.begin(i);
      if (i == blocks)
        r.wait_for(count);
    });
  {
    const two_threads threads(io);
    ops->complete();
    CHECK(r.wait_for(count));
  }
  auto begun = r.begun();
  CHECK(std::erase(begun, blocks) == 1);
  auto others = all_in_order();
  std::erase(others, blocks);
  CHECK(begun == others);
}

TEST_CASE(
    "a handler that lets operations complete and waits for them has them run by an idle thread") {
  const kind k = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  for (int i = 0; i < count; ++i)
    ops->start([&r, i] { r.begin(i); });
  bool all = false;
  record over;
  {
    const two_threads threads(io);
    asio::post(io, [&] {
      ops->complete();
      all = r.wait_for(count);
      over.begin(0);
    });
    over.wait_for(1);
  }
  CHECK(all);
  CHECK(r.begun() == all_in_order());
}

TEST_CASE("handlers behind one that throws are run by an idle thread") {
  const kind k = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  constexpr int throws = 1;
  for (int i = 0; i < count; ++i)
    ops->start([&r, i] {
      r.begin(i);
      if (i == throws)
        throw i;
    });
  {
    const two_threads threads(io);
    ops->complete();
    CHECK(r.wait_for(count));
  }
  auto begun = r.begun();
  CHECK(std::erase(begun, throws) == 1);
  auto others = all_in_order();
  std::erase(others, throws);
  CHECK(begun == others);
}

TEST_CASE("run_one runs one handler, and after stop none begins") {
  const kind k = GENERATE(from_range(std::begin(kinds), std::end(kinds)));
  const bool stops = GENERATE(false, true);
  INFO(k.name);
  asio::io_context io;
  const auto ops = k.make(io);
  record r;
  for (int i = 0; i < count; ++i)
    ops->start([&, i] {
      r.begin(i);
      if (stops)
        io.stop();
    });
  ops->complete();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::size_t most = 0;
  for (std::size_t before = 0; before < count && std::chrono::steady_clock::now() < give_up;) {
    if (stops) {
      io.restart();
      io.run();
    } else {
      io.run_one();
    }
    const std::size_t after = r.begun().size();
    most = std::max(most, after - before);
    before = after;
  }
  CHECK(most == 1);
  CHECK(r.begun() == all_in_order());
}
