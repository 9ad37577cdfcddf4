// SPDX-License-Identifier: BSL-1.0
// The events that the library logs.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <asio_rdma/log.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace test::log_tests {
namespace {

struct kept_record {
  log_severity severity;
  log_event event;
  std::string text;
  error_code error;
  std::uint32_t queue_pair;
  ibv_wc_status status;
};

/// The events that are logged while it exists.
class recorder {
public:
  explicit recorder(const log_options& options = {}) {
    set_log(
        [this](const log_record& r) {
          const std::lock_guard lock(mutex_);
          all_.push_back(
              {r.severity, r.event, std::string(r.text), r.error, r.queue_pair, r.status});
        },
        options);
  }
  recorder(const recorder&) = delete;
  ~recorder() { set_log({}); }

  std::vector<kept_record> of(log_event e) const {
    std::vector<kept_record> result;
    const std::lock_guard lock(mutex_);
    std::copy_if(all_.begin(), all_.end(), std::back_inserter(result),
                 [e](const kept_record& r) { return r.event == e; });
    return result;
  }
  std::size_t count(log_event e) const { return of(e).size(); }

private:
  mutable std::mutex mutex_;
  std::vector<kept_record> all_;
};

log_options everything() {
  log_options o;
  o.least = log_severity::debug;
  return o;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("the log tells of a connection's begin and end, with the peer's address") {
  const recorder log;
  {
    stream_pair t;
    const auto made = log.of(log_event::connect), accepted = log.of(log_event::accept);
    REQUIRE(made.size() == 1);
    REQUIRE(accepted.size() == 1);
    CHECK(made[0].severity == log_severity::info);
    CHECK(made[0].queue_pair == t.a.native_handle()->qp_num);
    CHECK(has(made[0].text, "connected to " + t.listener.local_endpoint().address().to_string()));
    CHECK(accepted[0].severity == log_severity::info);
    CHECK(accepted[0].queue_pair == t.b.native_handle()->qp_num);
    CHECK(log.count(log_event::end) == 0);
    t.a.close();
    sent read;
    std::vector<char> to(1);
    asio::async_read(t.b, asio::buffer(to), read.handler());
    t.until([&] { return read.done() && log.count(log_event::end) != 0; });
  }
  for (const kept_record& r : log.of(log_event::end)) {
    CHECK(has(r.text, "the stream with "));
    CHECK(has(r.text, " has ended: "));
    CHECK(r.queue_pair != 0);
  }
}

TEST_CASE("the log tells why an attempt to connect failed") {
  const recorder log;
  meeting m;
  const endpoint unused(m.where().address(), 9); // no program listens at this port
  m.initiator->async_connect(m.a, unused, m.connected.handler());
  m.until([&] { return m.connected.done(); });
  const auto failed = log.of(log_event::connect);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].severity == log_severity::warning);
  CHECK(failed[0].error == m.connected.ec);
  // The line names the endpoint before the error.
  const error_code plain(m.connected.ec.value(), library_category());
  CHECK(has(failed[0].text, ":9 failed: " + plain.message()));
}

TEST_CASE("the log tells which request was refused, and why") {
  const recorder log;
  meeting m({}, {}, 1);
  std::deque<queue_pair> others;
  std::deque<connection> ends;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back(m.io, m.pd);
    m.initiator->async_connect(others.back(), m.where(), ends.emplace_back().handler());
  }
  m.until([&] {
    return std::count_if(ends.begin(), ends.end(), [](const auto& c) { return c.done(); }) == 2;
  });
  const auto refused = log.of(log_event::refuse);
  REQUIRE(refused.size() == 2);
  for (const kept_record& r : refused) {
    CHECK(r.severity == log_severity::warning);
    CHECK(has(r.text, "was refused: the backlog is full"));
    CHECK(has(r.text, "a request of " + m.where().address().to_string()));
  }
}

TEST_CASE("the log tells the status of a failed work request") {
  const recorder log;
  pair p;
  const std::uint32_t numbers[] = {p.a.native_handle()->qp_num, p.b.native_handle()->qp_num};
  got shorter;
  sent s;
  p.b.async_receive(p.mb.buffer(0, 4), shorter.handler());
  p.a.async_send(p.ma.buffer(0, 8), s.handler());
  p.until([&] { return shorter.done(); });
  REQUIRE(shorter.ec);
  if (shorter.ec == asio::error::connection_reset)
    return not_on_this_device("a status of a short receive");
  const kept_record r = log.of(log_event::failure).at(0);
  CHECK(r.severity == log_severity::error);
  CHECK(r.status != IBV_WC_SUCCESS);
  CHECK(r.status != IBV_WC_WR_FLUSH_ERR);
  CHECK(has(r.text, "status " + std::to_string(r.status) + ", vendor error 0x"));
  CHECK((r.queue_pair == numbers[0] || r.queue_pair == numbers[1]));
}

TEST_CASE("the log tells of data that waits long, and when the wait is over") {
  log_options options;
  options.long_wait = std::chrono::milliseconds(1);
  const recorder log(options);
  connection_options apart, few;
  apart.gather = false; // each message takes a receive
  few.receives = 8;
  talk t(apart, few);
  std::vector<sent> sends(12);
  const auto data = pattern(100, 1);
  for (sent& s : sends)
    t.a.async_send(asio::buffer(data), s.handler());
  t.until([&] { return log.count(log_event::wait) == 1; });
  const kept_record begun = log.of(log_event::wait).front();
  CHECK(begun.severity == log_severity::warning);
  CHECK(begun.queue_pair == t.a.native_handle()->qp_num);
  CHECK(has(begun.text, "still waits"));
  std::vector<outcome<message>> received(sends.size());
  for (auto& r : received)
    t.b.async_receive(r.handler());
  t.until([&] { return received.back().done() && sends.back().done(); });
  const auto all = log.of(log_event::wait);
  REQUIRE(all.size() >= 2);
  CHECK(has(all[1].text, "until the peer took earlier data"));
}

TEST_CASE("the log tells once a second of a pool at its limit") {
  const recorder log;
  const device dev = open_device();
  memory_pool_options options;
  options.first_arena = options.limit = 256 * 1024;
  const memory_pool pool(protection_domain(dev), options);
  const registered_buffer all = pool.allocate(256 * 1024);
  error_code ec;
  for (int i = 0; i < 3; ++i) {
    pool.allocate(128 * 1024, ec);
    CHECK(ec == error::pool_limit);
  }
  const auto lacks = log.of(log_event::memory);
  REQUIRE(lacks.size() == 1);
  CHECK(lacks[0].error == error::pool_limit);
  CHECK(has(lacks[0].text, "262144 of at most 262144 bytes and cannot add 131072"));
}

TEST_CASE("events of a lower severity are not reported") {
  log_options options;
  options.least = log_severity::warning;
  const recorder log(options);
  const stream_pair t;
  CHECK(log.count(log_event::connect) == 0);
  CHECK(log.count(log_event::accept) == 0);
}

TEST_CASE("an exception of the log function is dropped, and set_log refuses a call by it") {
  int calls = 0, refused = 0;
  set_log(
      [&](const log_record&) {
        ++calls;
        try {
          set_log({});
        } catch (const std::logic_error&) {
          ++refused;
        }
        throw std::runtime_error("of the log");
      },
      everything());
  {
    talk t;
    CHECK(t.lives());
    CHECK(calls != 0);
    CHECK(refused == calls);
  }
  set_log({});
  const int before = calls;
  {
    talk t;
    CHECK(t.lives());
  }
  CHECK(calls == before);
}

// Under ThreadSanitizer this shows a function that is called after `set_log` has returned.
TEST_CASE("the log function is replaced while other threads log") {
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) {
      auto calls = std::make_unique<std::atomic<int>>(0);
      set_log([p = calls.get()](const log_record&) { ++*p; }, everything());
      set_log({});
      calls.reset();
    }
  });
  for (int i = 0; i < 3; ++i) {
    talk t;
    CHECK(t.lives());
  }
  over = true;
  other.join();
}

} // namespace test::log_tests
