// SPDX-License-Identifier: BSL-1.0
// Rows of docs/adapters.md: what adapters do.
#include "bare_verbs.hpp"
#include "check.hpp"
#include "elapsed.hpp"
#include "memory.hpp"

#include <asio_rdma/connection.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <sstream>

namespace trial {

namespace {

/// Such messages fit into a completion, or do not.
constexpr std::size_t small_sizes[] = {1, 8, 31, 32, 33, 64, 65};

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

/// Small messages and READs in memory of the program, which a provider may copy.
awaitable<void> carry_small(session& s) {
  pair_end e(s);
  co_await e.link();
  for (const std::size_t bytes : small_sizes)
    co_await e.carry(bytes, unsigned(bytes));
  if (!s.is_near())
    fill(e.memory.data(), 256, 4);
  co_await s.meet();
  if (s.is_near())
    for (const std::size_t bytes : small_sizes) {
      std::fill(e.memory.begin(), e.memory.end(), '\0');
      co_await e.qp.async_read(e.region.buffer(0, bytes), e.there, use_awaitable);
      compare(e.memory.data(), bytes, 4);
    }
  co_await s.meet();
}

/// The same with memory that the processor cannot access by its addresses, on both sides.
awaitable<void> carry_device_memory(session& s, const device_memory& m) {
  pair_end e(s);
  co_await e.link();
  const bool receives = s.dev.has_device_only_receives();
  if (!s.is_near() && !receives) {
    error_code ec;
    try {
      co_await e.qp.async_receive(m.region.buffer(0, 64), use_awaitable);
    } catch (const system_error& x) {
      ec = x.code();
    }
    expect(ec == asio::error::operation_not_supported,
           "a receive that the provider may copy by the processor is not refused");
  }
  co_await s.tell(std::string(receives ? "receives" : "refuses"));
  const bool far_receives = co_await s.hear() == "receives";
  for (const std::size_t bytes : small_sizes) {
    if (s.is_near()) {
      m.put(bytes, unsigned(bytes));
      co_await s.hear();
      co_await e.qp.async_send(m.region.buffer(0, bytes), use_awaitable);
      co_await s.hear(); // the far side has filled its memory
      co_await e.qp.async_read(m.region.buffer(0, bytes), e.there, use_awaitable);
      m.compare(bytes, 4);
    } else {
      const mutable_buffer to = receives ? m.region.buffer(0, bytes) : e.region.buffer(0, bytes);
      co_await (e.qp.async_receive(to, use_awaitable) && s.tell(std::string("ready")));
      if (receives)
        m.compare(bytes, unsigned(bytes));
      else
        compare(e.memory.data(), bytes, unsigned(bytes));
      fill(e.memory.data(), bytes, 4);
      co_await s.tell(std::string("filled"));
    }
  }
  s.remark("memory of " + m.kind() + ": SENDs from it, READs into it, " +
           (far_receives ? "receives into it" : "receives into it are refused"));
  co_await s.meet();
}

awaitable<void> h4(session& s) {
  co_await carry_small(s);
  const device_memory m(s.pd);
  // Named, because gcc 12 destroys such temporaries of a co_await expression twice.
  const std::string reason = "small messages and READs were right in memory of the program, but "
                             "there is none of a dma-buf: " +
                             m.absence();
  co_await s.need(m.region.is_open(), reason);
  co_await carry_device_memory(s, m);
}

/// Connects while a former connection has the number of the queue pair. The connection manager
/// then rejects the request as stale, and ends the former one. Returns whether it did so.
awaitable<bool> link_with_used_number(session& s, pair_end& e) {
  const queue_pair unused(s.io, s.pd); // no other connection has its number
  if (!s.is_near()) {
    bare_request former(s.address());
    co_await s.tell(asio::ip::tcp::endpoint(s.address(), former.port()));
    former.accept(unused.native_handle()->qp_num);
    co_await e.link();
    co_await s.meet();
    co_return true;
  }
  bare_request former(co_await s.hear_endpoint(), e.qp.native_handle()->qp_num, {});
  std::atomic<bool> linked = false;
  std::exception_ptr failed;
  auto ended = std::async(std::launch::async, [&] { return former.answer_end(linked); });
  try {
    co_await e.link();
  } catch (...) {
    failed = std::current_exception();
  }
  linked = true;
  const bool result = ended.get();
  if (failed)
    std::rethrow_exception(failed);
  co_await s.meet();
  co_return result;
}

awaitable<void> h5(session& s) {
  for (int i = 0; i < 30; ++i) {
    queue_pair qp(s.io, s.pd);
    co_await s.link(qp);
  }
  co_await s.meet();
  // Named, because gcc 12 destroys such temporaries of a co_await expression twice.
  const std::string seen = "30 connections followed each other at once, but none was stale: ";
  const std::string iwarp = seen + "iWARP has no such rejection";
  const std::string unmet = seen + "a number of a queue pair that is in use is not rejected";
  co_await s.need(s.dev.type() == transport::infiniband, iwarp);
  pair_end e(s);
  const bool met = co_await link_with_used_number(s, e);
  co_await s.need(met, unmet);
  s.remark("rejected as stale, asked again, and accepted");
  co_await e.carry(64, 1);
}

awaitable<void> h6(session&) {
  throw absence("the device would have to be removed");
  co_return;
}

awaitable<void> h10(session& s) {
  const int all = s.dev.native_handle()->num_comp_vectors;
  expect(all > 0, "the device has no completion vectors");
  co_await s.need(all > 1, "the device has one vector");
  int tried = 0;
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
    ++tried;
    if (!more || other == "last")
      break;
  }
  s.remark("completions by " + std::to_string(tried) + " of " + std::to_string(all) + " vectors");
}

/// The features that a queue pair has or offers; none if the device has none of a vendor.
std::optional<ibv_ece> features_of(const queue_pair& qp) {
  ibv_ece result{};
  const int status = ::ibv_query_ece(qp.native_handle(), &result);
  expect(status == 0 || status == EOPNOTSUPP || status == ENOSYS,
         "ibv_query_ece fails with " + std::to_string(status));
  if (status != 0 || result.vendor_id == 0)
    return {};
  return result;
}

/// Both sides tell each other their number.
awaitable<std::uint32_t> swap_numbers(session& s, std::uint32_t mine) {
  co_await s.tell(std::to_string(mine));
  co_return std::uint32_t(std::stoul(co_await s.hear()));
}

/// Whether rdma_cm, without the library, carries the features of the near side.
awaitable<bool> carries_features(session& s, const ibv_ece& features) {
  const queue_pair qp(s.io, s.pd); // for a number that no connection has
  if (s.is_near()) {
    const bare_request r(co_await s.hear_endpoint(), qp.native_handle()->qp_num, features);
    co_return co_await swap_numbers(s, 0) == features.options;
  }
  bare_request r(s.address());
  co_await s.tell(asio::ip::tcp::endpoint(s.address(), r.port()));
  const ibv_ece found = r.accept(qp.native_handle()->qp_num);
  co_await swap_numbers(s, found.options);
  co_return true;
}

awaitable<void> h11(session& s) {
  pair_end e(s);
  const auto offered = features_of(e.qp);
  co_await s.need(offered.has_value(), "the device has no such features");
  const bool same = co_await swap_numbers(s, offered->vendor_id) == offered->vendor_id;
  co_await s.need(same, "the other side's features are of another vendor");
  const std::uint32_t of_both = offered->options & co_await swap_numbers(s, offered->options);
  co_await s.need(of_both != 0, "the two sides offer no feature that both have");
  co_await e.link();
  const auto agreed = features_of(e.qp);
  const std::uint32_t mine = agreed ? agreed->options : 0;
  const std::uint32_t other = co_await swap_numbers(s, mine);
  if (mine == 0 || other == 0) {
    const bool carried = co_await carries_features(s, *offered);
    co_await s.need(carried, "this connection manager carries no features");
    throw failure("both sides have common features, which rdma_cm carries, and none is on");
  }
  expect(mine == other, "the two sides have different features");
  s.remark("both sides have the features " + std::to_string(mine));
  co_await e.carry(64, 1);
}

awaitable<void> h12(session& s) {
  co_await s.need(s.dev.type() == transport::infiniband, "TCP retransmits");
  pair_end e(s);
  co_await e.link();
  const ibv_qp_attr a = e.qp.query(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT);
  co_await s.need(a.timeout != 0, "the driver does not report the timeout");
  const double silence = 4.096e-6 * double(1ull << a.timeout) * a.retry_cnt;
  // rxe repeats for ever if it is given seven retries, so the library gives it six.
  constexpr unsigned rxe_vendor = 0xffffff;
  const double promised = s.dev.attributes().vendor_id == rxe_vendor ? 6.4 : 7.5;
  expect(silence > promised, "a silence of " + std::to_string(silence) + " s ends a queue pair");
  s.remark("by the attributes, as no silence was made: timeout " + std::to_string(a.timeout) +
           ", retries " + std::to_string(a.retry_cnt));
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
  s.remark("measured, no limit");
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
      {"h4", "h4", "small messages and READs, in memory that the processor cannot access, too", h4},
      {"h5", "h5",
       "connecting again at once, and while the former connection still seems to be there", h5},
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
