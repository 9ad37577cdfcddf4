// SPDX-License-Identifier: BSL-1.0
// Rows of docs/adapters.md: what adapters do.
#include "bare_verbs.hpp"
#include "check.hpp"
#include "elapsed.hpp"
#include "memory.hpp"

#include <asio_rdma/connection.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cerrno>
#include <chrono>
#include <memory>
#include <sstream>

namespace trial {

namespace {

/// Waits until no connection uses the receives, and all of them are posted.
awaitable<void> all_posted(session& s, const shared_receives& receives) {
  asio::steady_timer pause(s.io);
  for (;;) {
    const shared_receives_statistics now = receives.statistics();
    if (now.links == 0 && now.posted == receives.options().receives)
      co_return;
    pause.expires_after(std::chrono::milliseconds(2));
    co_await pause.async_wait(use_awaitable);
  }
}

awaitable<void> h1(session& s) {
  const memory_pool pool(s.pd);
  shared_receives_options few;
  few.receives = 64;
  error_code ec;
  const shared_receives receives(s.io, pool, few, ec);
  co_await s.need(ec != asio::error::operation_not_supported,
                  "the device has no shared receive queues");
  if (ec)
    throw system_error(ec);
  for (int i = 0; i < 20; ++i) {
    connection c(s.io, receives);
    co_await s.link(c);
    if (s.is_near()) // messages are in the receives, not polled, when the link ends
      for (int n = 0; n < 3; ++n)
        c.async_send(asio::buffer("some", 4), [](error_code, std::size_t) {});
    co_await s.meet();
    c.close();
    co_await all_posted(s, receives);
  }
  // A message to each receive, and none is received before all have arrived. A message that finds
  // no receive ends the connection. Some receives are for frames of the connection's own.
  constexpr std::uint32_t of_connection = 4;
  connection_options all;
  all.receives = few.receives;
  all.queue_pair.rnr_retry = 0;
  connection c(s.io, receives, all);
  co_await s.link(c);
  const std::vector<char> text(3000);
  const std::uint32_t count = few.receives - of_connection;
  if (s.is_near()) {
    struct results {
      std::uint32_t all = 0, failed = 0;
    };
    const auto of_sends = std::make_shared<results>();
    for (std::uint32_t n = 0; n < count; ++n)
      c.async_send(asio::buffer(text), [of_sends](error_code result, std::size_t) {
        ++of_sends->all;
        of_sends->failed += result ? 1u : 0u;
      });
    asio::steady_timer pause(s.io);
    while (of_sends->all != count) {
      pause.expires_after(std::chrono::milliseconds(2));
      co_await pause.async_wait(use_awaitable);
    }
    expect(of_sends->failed == 0,
           "messages that have found no receive: " + std::to_string(of_sends->failed));
  }
  co_await s.meet();
  if (!s.is_near())
    for (std::uint32_t n = 0; n < count; ++n)
      expect((co_await c.async_receive(use_awaitable)).size() == text.size(), "a message is lost");
  co_await s.meet();
}

awaitable<void> h2(session& s) {
  co_await s.need(is_roce(s.dev), "the device is not RoCE");
  for (const bool own : {false, true}) {
    queue_pair_options of_pair;
    if (own)
      of_pair.traffic_class = std::uint8_t(32);
    pair_end e(s, of_pair);
    connect_options options;
    options.type_of_service = std::uint8_t(104);
    co_await e.link(options);
    const auto route = route_of(e.qp);
    co_await s.need(route.has_value(), "the driver does not report the address vector");
    const int found = route->grh.traffic_class;
    expect(found == (own ? 32 : 104), "the traffic class is " + std::to_string(found));
    co_await e.carry(8, 1);
  }
}

/// The address vector of a queue pair whose options rdma_cm alone has set, without the library.
awaitable<std::optional<ibv_ah_attr>> route_of_rdma_cm(session& s) {
  const auto e = co_await link_bare(s, {8, 1, false});
  const auto result = if_reported(e->route());
  co_await s.meet();
  co_return result;
}

awaitable<void> h2_unset(session& s) {
  co_await s.need(is_roce(s.dev), "the device is not RoCE");
  pair_end e(s);
  co_await e.link();
  const auto wanted = co_await route_of_rdma_cm(s);
  co_await s.need(wanted.has_value(), "the driver does not report the address vector");
  const auto route = route_of(e.qp);
  const int found = route ? route->grh.traffic_class : -1, right = wanted->grh.traffic_class;
  expect(found == right, "the traffic class is " + std::to_string(found) +
                             ", and that of rdma_cm " + std::to_string(right));
  expect(route->sl == wanted->sl, "the service level is not that of rdma_cm");
  co_await s.need(right != 0, "the administrator has set no traffic class");
  s.remark(std::to_string(right));
  co_await e.carry(8, 1);
}

/// The shortest time of several, in seconds; none if the limit on locked memory is below that.
std::optional<double> time_of_registering(session& s, std::size_t bytes) {
  std::vector<char> memory(bytes);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto begin = clock_type::now();
    error_code ec;
    memory_region region(s.pd, memory.data(), memory.size(), access::local_write, ec);
    if (ec == error::memory_limit)
      return {};
    if (ec)
      throw system_error(ec);
    region.close();
    const double time = seconds_since(begin);
    best = i == 0 ? time : std::min(best, time);
  }
  return best;
}

awaitable<void> h3(session& s) {
  for (const std::size_t bytes : {std::size_t(4096), std::size_t(1) << 20, std::size_t(32) << 20}) {
    const std::string size = std::to_string(bytes / 1024) + " KiB";
    const std::optional<double> best = time_of_registering(s, bytes);
    if (best)
      s.add({"registering and releasing " + size, "us", 1e6 * *best, 0, true});
    else
      s.remark(size + " are above the limit on locked memory");
  }
  // Of messages that the peer reads, sent from memory of the pool. The first ones may register
  // more.
  constexpr std::size_t long_message = 1 << 20;
  constexpr int first = 2, counted = 8;
  const memory_pool pool(s.pd);
  connection c(s.io, pool);
  co_await s.link(c);
  const registered_buffer bytes = pool.allocate(long_message);
  std::uint64_t before = 0;
  for (int i = 0; i < first + counted; ++i) {
    if (i == first)
      before = c.statistics().registrations;
    if (s.is_near())
      co_await c.async_send(bytes, use_awaitable);
    else
      expect((co_await c.async_receive(use_awaitable)).size() == long_message, "a message is lost");
  }
  const double each = double(c.statistics().registrations - before) / counted;
  expect(each <= (s.dev.confines_windows() ? 0 : 1),
         "a message of 1 MiB registers memory " + std::to_string(each) + " times");
  s.add({"registering for a message of 1024 KiB", "times", each, 0, true});
  co_await s.meet();
}

awaitable<void> h4(session& s) {
  pair_end e(s);
  if (!s.is_near())
    fill(e.memory.data(), 256, 4);
  co_await e.link();
  if (s.is_near())
    for (const std::size_t bytes : {std::size_t(1), std::size_t(8), std::size_t(31),
                                    std::size_t(32), std::size_t(33), std::size_t(64)}) {
      std::fill(e.memory.begin(), e.memory.end(), '\0');
      co_await e.qp.async_read(e.region.buffer(0, bytes), e.there, use_awaitable);
      compare(e.memory.data(), bytes, 4);
    }
  co_await s.meet();
}

awaitable<void> h5(session& s) {
  for (int i = 0; i < 30; ++i) {
    queue_pair qp(s.io, s.pd);
    co_await s.link(qp);
  }
  co_await s.meet();
}

awaitable<void> h6(session&) {
  throw absence("the device would have to be removed");
  co_return;
}

awaitable<void> h10(session& s) {
  const int all = s.dev.native_handle()->num_comp_vectors;
  expect(all > 0, "the device has no completion vectors");
  for (int vector = 0; vector < std::min(all, 16); ++vector) {
    completion_queue_options options;
    options.completion_vector = vector;
    const completion_queue queue(s.io, s.dev, options);
    pair_end e(s);
    e.qp.close();
    e.qp.open(s.pd, queue);
    // The other side may have fewer vectors.
    const bool more = vector + 1 < std::min(all, 16);
    co_await s.tell(std::string(more ? "more" : "last"));
    const std::string other = co_await s.hear();
    co_await e.link();
    co_await e.carry(64, unsigned(vector));
    co_await s.meet();
    if (!more || other == "last")
      break;
  }
  s.remark(std::to_string(all) + " vectors");
}

awaitable<void> h11(session& s) {
  pair_end e(s);
  co_await e.link();
  ibv_ece mine{};
  const int status = ::ibv_query_ece(e.qp.native_handle(), &mine);
  expect(status == 0 || status == EOPNOTSUPP || status == ENOSYS,
         "ibv_query_ece fails with " + std::to_string(status));
  co_await s.need(status == 0 && mine.vendor_id != 0, "the device has no such features");
  co_await s.tell(std::to_string(mine.vendor_id) + ' ' + std::to_string(mine.options));
  std::istringstream text(co_await s.hear());
  ibv_ece other{};
  text >> other.vendor_id >> other.options;
  expect(mine.vendor_id != other.vendor_id || mine.options == other.options,
         "the two sides have different features");
  co_await e.carry(64, 1);
}

awaitable<void> h12(session& s) {
  co_await s.need(s.dev.type() == transport::infiniband, "TCP retransmits");
  pair_end e(s);
  co_await e.link();
  const ibv_qp_attr a = e.qp.query(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT);
  co_await s.need(a.timeout != 0, "the driver does not report the timeout");
  const double silence = 4.096e-6 * double(1ull << a.timeout) * a.retry_cnt;
  expect(silence > 6.4, "a silence of " + std::to_string(silence) + " s ends a queue pair");
  s.remark("timeout " + std::to_string(a.timeout) + ", retries " + std::to_string(a.retry_cnt));
  co_await s.meet();
}

awaitable<void> h17(session& s) {
  double open = 0, close = 0;
  for (int i = 0; i < 20; ++i) {
    auto begin = clock_type::now();
    queue_pair qp(s.io, s.pd);
    open += 1e6 * seconds_since(begin);
    begin = clock_type::now();
    qp.close();
    close += 1e6 * seconds_since(begin);
  }
  s.add({"opening a queue pair", "us", open / 20, 0, true});
  s.add({"closing a queue pair", "us", close / 20, 0, true});
  co_await s.meet();
}

awaitable<void> h18(session&) {
  throw absence("a cost of the provider, which its figures contain");
  co_return;
}

} // namespace

std::span<const check> habit_checks() {
  static constexpr check checks[] = {
      {"h1", "h1", "links that end lose no shared receives", h1},
      {"h2", "h2", "a connection's type of service, and the queue pair's own", h2},
      {"h2_unset", "h2", "without both, the administrator's type of service", h2_unset},
      {"h3", "h3", "registering memory: its time, and how often a long message does", h3},
      {"h4", "h4", "a small READ is in its memory when it completes", h4},
      {"h5", "h5", "connecting again at once", h5},
      {"h6", "h6", "the removal of the device", h6},
      {"h10", "h10", "completions by each vector", h10},
      {"h11", "h11", "features of enhanced connection establishment", h11},
      {"h12", "h12", "the timeout and the retries allow a silence of 6.4 s", h12},
      {"h17", "h17", "the time of opening and closing a queue pair", h17},
      {"h18", "h18", "locks of the provider", h18},
  };
  return checks;
}

} // namespace trial
