// SPDX-License-Identifier: BSL-1.0
// An adapter is removed from the machine while threads use it: every operation ends with
// `error::device_removed`, nothing is left, and what uses another context goes on.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/load.hpp"
#include "device/connection/connection_support.hpp"
#include "device/lifetime/life_resources.hpp"
#include "device/streams/stream_support.hpp"
#include "device/support/long_run.hpp"

#include <asio_rdma/device_events.hpp>
#include <asio_rdma/shared_receives.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <malloc.h>
#include <optional>
#include <random>
#include <string>
#include <thread>

namespace test::losses_tests {
namespace {

using asio::use_awaitable;
using namespace std::chrono_literals;

/// An execution context and the thread that runs it.
class threaded {
public:
  ~threaded() {
    if (thread_.joinable()) {
      io.stop();
      thread_.join();
    }
  }

  void begin() {
    work_.emplace(io.get_executor());
    thread_ = std::thread([this] {
      io.run();
      idle_ = true;
    });
  }
  /// Waits until the context has no work.
  void finish() {
    work_.reset();
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!idle_) {
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("a context still has work");
      std::this_thread::yield();
    }
    thread_.join();
  }

  asio::io_context io;

private:
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::atomic<bool> idle_{false};
  std::thread thread_;
};

/// Bytes of a random length.
class part {
public:
  explicit part(unsigned seed, std::size_t longest) : random_(seed), bytes_(longest) {}
  auto operator()() { return asio::buffer(bytes_.data(), 1 + random_() % bytes_.size()); }

private:
  std::minstd_rand random_;
  std::vector<char> bytes_;
};

/// Connections, streams and queue pairs between two contexts, each with a thread, and all kinds of
/// operations on them.
class busy {
public:
  explicit busy(unsigned seed) : seed_(seed) {
    if (dev_.attributes().max_srq != 0)
      shared_ = shared_receives(there_.io, pool_);
    for (acceptor* const each : {&listener_, &gate_, &deaf_})
      each->open({device_address(dev_), 0});
    connection_options generous;
    generous.remote_memory.bytes = 1 << 20;
    open(own_, {}, generous);
    open(sharing_, shared_, generous);
    open(streams_);
    open(sharing_streams_, shared_);
    queue_pair_options patient;
    patient.rnr_retry = 7; // a SEND may come before the next receive is posted
    for (queue_pair* const q : {&p_, &q_})
      q->open(pd_, patient);
    connect(p_, q_);
    for (auto* const pair : {&own_, &sharing_}) {
      // A connection answers while it has an operation.
      for (asio_rdma::connection* const c : {&pair->a, &pair->b})
        c->async_wait_disconnect(waits_.emplace_back().handler());
      for (asio_rdma::connection* const c : {&pair->a, &pair->b})
        regions_.push_back(ask(*c));
    }
  }

  /// Starts the operations and the threads.
  void begin() {
    auto region = regions_.begin();
    for (auto* const pair : {&own_, &sharing_})
      for (asio_rdma::connection* const c : {&pair->a, &pair->b})
        start(*c, *region++);
    for (auto* const pair : {&streams_, &sharing_streams_})
      for (asio_rdma::stream* const s : {&pair->a, &pair->b})
        start(*s);
    for (queue_pair* const q : {&p_, &q_})
      start(*q);
    start_connecting();
    here_.begin();
    there_.begin();
  }
  void wait(const std::function<bool()>& condition) const {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) {
        for (const load::end& e : all.ends())
          UNSCOPED_INFO(e.name << ": " << describe(e.ec));
        throw std::runtime_error(std::to_string(all.running()) + " operations have not ended");
      }
      std::this_thread::yield();
    }
  }
  /// After the removal: waits until all operations have ended, and the contexts have no work.
  void finish() {
    wait([&] { return all.running() == 0; });
    close(own_);
    close(sharing_);
    close(streams_);
    close(sharing_streams_);
    for (queue_pair* const q : {&p_, &q_, &comes_, &goes_, &asks_, &waits_for_request_})
      q->close();
    for (acceptor* const each : {&listener_, &gate_, &deaf_})
      each->close();
    regions_.clear();
    shared_ = {};
    wait([&] { return pool_.statistics().blocks_in_use == 0; }); // the device may keep some so long
    here_.finish();
    there_.finish();
  }
  const memory_pool& pool() const { return pool_; }
  const device& get_device() const { return dev_; }
  const std::deque<outcome<void>>& waits() const { return waits_; }

  load all;
  /// At least, and at most.
  static constexpr int queue_pairs = 12, most_queue_pairs = 14;

private:
  template <class Link>
  struct links {
    Link a, b;
    explicit links(busy& of) : a(of.here_.io), b(of.there_.io) {}
  };

  template <class Link, class... Options>
  void open(links<Link>& l, const shared_receives& shared = {}, const Options&... options) {
    l.a.open(pool_, options...);
    if (shared.is_open())
      l.b.open(shared, options...);
    else
      l.b.open(pool_, options...);
    connect(l.a, l.b);
  }
  template <class Link>
  static void close(links<Link>& l) {
    l.a.close();
    l.b.close();
  }
  template <class Object>
  void connect(Object& from, Object& to) {
    test::connection accepted, connected;
    listener_.async_accept(to, accepted.handler());
    initiator_.async_connect(from, listener_.local_endpoint(), connected.handler());
    until({&here_.io, &there_.io}, [&] { return accepted.done() && connected.done(); });
    if (accepted.ec || connected.ec)
      throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  }
  remote_region ask(asio_rdma::connection& c) {
    outcome<remote_region> r;
    c.async_request_memory(16384, access::remote_write | access::remote_read, r.handler());
    until({&here_.io, &there_.io}, [&] { return r.done(); });
    if (r.ec)
      throw system_error(r.ec, "request");
    return r.value;
  }

  void start(asio_rdma::connection& c, const remote_region& region) {
    const auto ex = c.get_executor();
    all.start(ex, "wait for the end",
              [&c]() -> asio::awaitable<void> { co_await c.async_wait_disconnect(use_awaitable); });
    all.start(ex, "receive",
              [&c]() -> asio::awaitable<void> { co_await c.async_receive(use_awaitable); });
    all.start(ex, "receive of a region",
              [&c]() -> asio::awaitable<void> { co_await c.async_receive_region(use_awaitable); });
    for (const std::size_t longest : {std::size_t(500), std::size_t(200'000)})
      all.start(ex, "send", [&c, text = part(++seed_, longest)]() mutable -> asio::awaitable<void> {
        co_await c.async_send(text(), use_awaitable);
      });
    all.start(ex, "send of registered memory", [&c, this]() -> asio::awaitable<void> {
      const registered_buffer memory = pool_.allocate(100'000);
      co_await c.async_send(memory, use_awaitable);
    });
    all.start(ex, "remote write",
              [&c, region, text = part(++seed_, region.size())]() mutable -> asio::awaitable<void> {
                co_await c.async_write(text(), region, use_awaitable);
              });
    all.start(ex, "remote read",
              [&c, region, to = std::vector<char>(9000)]() mutable -> asio::awaitable<void> {
                co_await c.async_read(asio::buffer(to), region, use_awaitable);
              });
    all.start(ex, "request of memory", [&c]() -> asio::awaitable<void> {
      const remote_region r = co_await c.async_request_memory(100, use_awaitable);
    });
    all.start(ex, "lending", [&c, this]() -> asio::awaitable<void> {
      co_await c.async_send_region(pool_.allocate(64), use_awaitable);
    });
  }
  void start(asio_rdma::stream& s) {
    const auto ex = s.get_executor();
    all.start(ex, "read", [&s, to = std::vector<char>(70'000)]() mutable -> asio::awaitable<void> {
      co_await s.async_read_some(asio::buffer(to), use_awaitable);
    });
    all.start(ex, "write", [&s, text = part(++seed_, 3000)]() mutable -> asio::awaitable<void> {
      co_await asio::async_write(s, text(), use_awaitable);
    });
    all.start(ex, "write of registered memory", [&s, this]() -> asio::awaitable<void> {
      const registered_buffer memory = pool_.allocate(200'000);
      co_await s.async_write_some(memory, use_awaitable);
    });
  }
  void start(queue_pair& q) {
    const auto ex = q.get_executor();
    memory& mine = memory_of_[&q == &q_ ? 1 : 0];
    const remote_buffer other = memory_of_[&q == &q_ ? 0 : 1].remote(0, 8192);
    all.start(ex, "wait for the end of a queue pair",
              [&q]() -> asio::awaitable<void> { co_await q.async_wait_disconnect(use_awaitable); });
    all.start(ex, "WRITE", [&q, &mine, other]() -> asio::awaitable<void> {
      co_await q.async_write(mine.buffer(16384, 8192), other, use_awaitable);
    });
    all.start(ex, "READ", [&q, &mine, other]() -> asio::awaitable<void> {
      co_await q.async_read(mine.buffer(32768, 8192), other, use_awaitable);
    });
    all.start(ex, "receive of a queue pair", [&q, &mine]() -> asio::awaitable<void> {
      co_await q.async_receive(mine.buffer(49152, 64), use_awaitable);
    });
    all.start(ex, "SEND", [&q, &mine]() -> asio::awaitable<void> {
      co_await q.async_send(mine.buffer(57344, 64), use_awaitable);
    });
  }

  // Connections that come and go; an attempt that the peer's program does not answer, with another
  // endpoint left; an acceptor without requests.
  void start_connecting() {
    const endpoint gate = gate_.local_endpoint(), deaf = deaf_.local_endpoint();
    all.start(comes_.get_executor(), attempt, [this, gate]() -> asio::awaitable<void> {
      comes_.close();
      comes_.open(pd_);
      const std::array<endpoint, 2> range{endpoint(gate.address(), 1), gate}; // none listens at 1
      co_await initiator_.async_connect(comes_, range, use_awaitable);
    });
    all.start(goes_.get_executor(), acceptance, [this]() -> asio::awaitable<void> {
      goes_.close();
      goes_.open(pd_);
      co_await gate_.async_accept(goes_, use_awaitable);
    });
    connect_options patient;
    patient.timeout = 1h;
    asks_.open(pd_);
    all.start(asks_.get_executor(), unanswered,
              [this, deaf, gate, patient]() -> asio::awaitable<void> {
                const std::array<endpoint, 2> range{deaf, gate};
                co_await initiator_.async_connect(asks_, range, patient, use_awaitable);
              });
    waits_for_request_.open(pd_);
    all.start(waits_for_request_.get_executor(), "acceptance without a request",
              [this]() -> asio::awaitable<void> {
                co_await listener_.async_accept(waits_for_request_, use_awaitable);
              });
  }

public:
  static constexpr const char *attempt = "attempt", *acceptance = "acceptance",
                              *unanswered = "unanswered attempt";

private:
  unsigned seed_;
  device dev_ = open_device();
  protection_domain pd_{dev_};
  memory_pool pool_{pd_};
  std::array<memory, 2> memory_of_{memory(pd_, 65536, all_rights), memory(pd_, 65536, all_rights)};
  std::deque<outcome<void>> waits_; // each ends with the removal
  threaded here_, there_;
  shared_receives shared_;
  acceptor listener_{there_.io}, gate_{there_.io}, deaf_{there_.io};
  connector initiator_{here_.io};
  links<asio_rdma::connection> own_{*this}, sharing_{*this};
  links<asio_rdma::stream> streams_{*this}, sharing_streams_{*this};
  queue_pair p_{here_.io}, q_{there_.io}, comes_{here_.io}, goes_{there_.io}, asks_{here_.io},
      waits_for_request_{there_.io};
  std::vector<remote_region> regions_;
};

// The ids of rdma_cm get their event immediately before calls fail; some time before; or last.
constexpr const char* at_once = "";
constexpr const char* with_notice = ",removal_notice=2ms";
constexpr const char* ids_last = ",ids_last=1";
const char* any_order() { return GENERATE(at_once, with_notice, ids_last); }

std::string removed(const std::string& kind, const char* order) {
  return kind + order + ",event=now:device_fatal";
}

/// While it lives, the objects of a removed device can be destroyed (ibv_open_device(3)).
struct disassociated_destroy {
  disassociated_destroy() { setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1); }
  ~disassociated_destroy() { unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY"); }
};

// An attempt that begins after the event of the ids finds no way to the peer. The two sides end one
// after another, and the first one may reject or withdraw the connection.
bool is_of_peer(const load::end& e) {
  if (e.name == busy::attempt || e.name == busy::unanswered)
    return e.ec == error::unreachable || e.ec == error::rejected;
  return e.name == busy::acceptance && e.ec == asio::error::connection_aborted;
}

// Removes the device after a random number of operations, and checks their ends. Returns how many
// have ended before the device had released their memory: the library waits for 100 ms, in which a
// busy machine may not get to the end of the removal.
int remove_under_load(const std::string& kind, const char* order, unsigned seed) {
  INFO(kind << order << ", seed " << seed);
  std::minstd_rand random(seed);
  adapter a(kind);
  busy b(seed);
  b.begin();
  const std::uint64_t before = random() % 1000;
  b.wait([&] { return b.all.steps() >= before || b.all.ends().size() != 0; });
  for (const load::end& e : b.all.ends())
    FAIL(e.name << ": " << describe(e.ec));
  a.become(removed(kind, order).c_str());
  b.wait([&] { return b.get_device().is_removed(); });
  b.finish();
  int early = 0;
  for (const load::end& e : b.all.ends()) {
    INFO(e.name << ": " << describe(e.ec));
    if (e.ec == error::device_keeps_memory)
      ++early;
    else if (!is_of_peer(e))
      CHECK(e.ec == error::device_removed);
  }
  for (const outcome<void>& w : b.waits())
    if (w.ec == error::device_keeps_memory) // of the receive that has ended the connection
      ++early;
    else
      CHECK(w.ec == error::device_removed);
  CHECK(b.pool().statistics().blocks_in_use == 0);
  return early;
}

// The memory that the library and the test have from the heap. The software device has one of its
// own, and loses what the provider of an adapter does. A sanitizer finds lost memory itself.
std::int64_t heap_bytes() {
  const struct mallinfo2 all = mallinfo2();
  return static_cast<std::int64_t>(all.uordblks + all.hblkhd);
}

struct totals {
  int early = 0;             ///< the sum of `remove_under_load`
  std::int64_t heap = 0;     ///< what has been lost of `heap_bytes`
  std::int64_t resident = 0; ///< what the process has lost, with the device
};

// Removes the device many times; `destroyed`: the objects can be destroyed nevertheless.
totals remove_often(unsigned first, int times, const char* order, bool destroyed) {
  std::optional<disassociated_destroy> allowed;
  if (destroyed)
    allowed.emplace();
  remove_under_load("mlx5", order, first); // also makes what the process has once
  const object_counts in_use = objects_in_use(), lost = lost_objects();
  const int lost_pairs = lost_queue_pairs();
  const auto open = open_descriptors();
  totals sum;
  sum.heap -= heap_bytes();
  sum.resident -= static_cast<std::int64_t>(resident_bytes());
  for (int n = 1; n != times; ++n)
    sum.early += remove_under_load("mlx5", order, first + static_cast<unsigned>(n));
  CHECK(objects_in_use() == in_use);
  if (destroyed)
    CHECK(lost_objects() == lost);
  if (destroyed) {
    CHECK(open_descriptors() == open);
  } else {
    const int more = lost_queue_pairs() - lost_pairs;
    CHECK(more <= (times - 1) * busy::most_queue_pairs);
    if (order != with_notice) // else some are destroyed in time
      CHECK(more >= (times - 1) * busy::queue_pairs);
    // The software device has a socket for each 4096 numbers of queue pairs.
    CHECK(open_descriptors() <= open + static_cast<unsigned>(more) / 4096 + 1);
  }
  sum.heap += heap_bytes();
  sum.resident += static_cast<std::int64_t>(resident_bytes());
  CHECK(sum.heap < 16'384 + 100 * times); // no object of each removal
  return sum;
}

std::string any_kind() { return GENERATE("mlx5", "irdma", "bnxt_re", "erdma"); }

} // namespace

TEST_CASE("a removed adapter ends all operations of all threads with its error", "[h6]") {
  const std::string kind = any_kind();
  const char* const order = any_order();
  for (unsigned seed = 0; seed < 5; ++seed)
    remove_under_load(kind, order, seed);
}

TEST_CASE("a removal that takes a while ends all operations with its error, too", "[h6]") {
  remove_under_load("mlx5,removal=20ms", any_order(), 50);
}

// The library waits for 100 ms, once for each opened device.
TEST_CASE("memory is free at the end of a removal that takes longer than the library waits",
          "[h6]") {
  const char* const order = any_order();
  int early = 0;
  for (unsigned seed = 60; seed != 63; ++seed)
    early += remove_under_load("mlx5,removal=150ms", order, seed);
  if (order != with_notice) // else all may have ended in time
    CHECK(early != 0);
}

TEST_CASE("removals leave no descriptor, and no object but those that cannot be destroyed",
          "[h6]") {
  const char* const order = any_order();
  remove_often(100, 10, order, GENERATE(true, false));
}

TEST_CASE("a device that is opened while another one is removed goes on", "[h6]") {
  adapter a("mlx5");
  pair p;
  a.become("mlx5,removal=20ms,event=now:device_fatal");
  pair anew;
  outcome<device_event> event, none;
  device_events events(p.io, p.dev), other(anew.io, anew.dev);
  events.async_wait_event(event.handler());
  other.async_wait_event(none.handler());
  p.until([&] { return event.done(); });
  CHECK(event.value.type == IBV_EVENT_DEVICE_FATAL);
  CHECK(anew.carries("still here"));
  CHECK_FALSE(anew.dev.is_removed());
  CHECK_FALSE(none.done());
  other.close();
  anew.drain();
}

namespace {

void remove_1000_times(const char* order, bool destroyed) {
  const unsigned first = std::random_device()();
  std::printf("first seed %u\n", first);
  const totals sum = remove_often(first, 1000, order, destroyed);
  std::printf("1000 removals%s, destroying %s: %d operations have ended early; lost: %lld KiB, and "
              "%lld KiB by the device\n",
              order, destroyed ? "works" : "fails", sum.early,
              static_cast<long long>(sum.heap / 1024),
              static_cast<long long>((sum.resident - sum.heap) / 1024));
}

} // namespace

TEST_CASE("an adapter is removed 1000 times under load", "[.long][h6]") {
  remove_1000_times(any_order(), true);
}

TEST_CASE("an adapter whose objects cannot be destroyed is removed 1000 times under load",
          "[.long][h6]") {
  remove_1000_times(any_order(), false);
}

} // namespace test::losses_tests
