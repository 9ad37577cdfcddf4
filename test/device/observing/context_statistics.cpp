// SPDX-License-Identifier: BSL-1.0
// One report of all objects of a context, and latencies.
#include "catch.hpp"
#include "device/streams/stream_support.hpp"

#include <asio_rdma/statistics.hpp>
#include <boost/property_tree/json_parser.hpp>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <thread>
#include <variant>

namespace test::context_statistics_tests {
namespace {

boost::property_tree::ptree parsed(const std::string& json) {
  std::istringstream in(json);
  boost::property_tree::ptree result;
  boost::property_tree::read_json(in, result);
  return result;
}

} // namespace

TEST_CASE("a context without objects has an empty report") {
  asio::io_context io;
  const context_statistics s = statistics(io);
  CHECK(s.links.empty());
  CHECK(s.acceptors.empty());
  CHECK(to_prometheus(s).empty());
  CHECK(parsed(to_json(s)).get_child("links").empty());
}

TEST_CASE("one call reports the objects of a context") {
  talk t;
  t.exchange(1000);
  queue_pair bare(t.io, t.pd);
  const context_statistics s = statistics(t.io);
  REQUIRE(s.links.size() == 2);
  const auto& a = s.links[0].queue_pair == t.a.native_handle()->qp_num ? s.links[0] : s.links[1];
  CHECK_FALSE(a.is_stream);
  CHECK(a.state == queue_pair_state::connected);
  CHECK(a.device == t.dev.name());
  CHECK(a.peer.find(device_address(t.dev).to_string()) != std::string::npos);
  CHECK(a.counters.messages_sent == 1);
  CHECK(a.counters.bytes_sent == 1000);
  CHECK_FALSE(a.latencies);
  REQUIRE(s.acceptors.size() == 1);
  CHECK(s.acceptors[0].counters.accepted == 1);
  REQUIRE(s.queue_pairs.size() == 1); // those of the links are not among them
  CHECK(s.queue_pairs[0].number == bare.native_handle()->qp_num);
  CHECK(s.queue_pairs[0].state == queue_pair_state::open);
  CHECK(s.completion_queues.size() == 1);
  REQUIRE(s.pools.size() == 1); // both links use it
  CHECK(s.pools[0].counters.bytes_registered == t.pool.statistics().bytes_registered);

  const auto json = parsed(to_json(s));
  CHECK(json.get_child("links").size() == 2);
  CHECK(json.get_child("links").front().second.get<std::string>("kind") == "connection");
  CHECK(json.get_child("acceptors").front().second.get<int>("accepted") == 1);
  const std::string text = to_prometheus(s);
  CHECK(text.find("asio_rdma_acceptor_accepted_total{endpoint=\"") != std::string::npos);

  t.a.close();
  t.b.close();
  CHECK(statistics(t.io).links.empty());
}

TEST_CASE("latencies are measured if the program asks for them") {
  talk t;
  t.exchange(100);
  CHECK(t.a.latencies().sends.count() == 0);
  t.a.measure_latency();
  const auto before = t.a.statistics().frames_sent;
  for (int i = 0; i < 10; ++i)
    t.exchange(100);
  link_latencies l = t.a.latencies();
  CHECK(l.sends.count() == t.a.statistics().frames_sent - before);
  CHECK(l.sends.last.count() > 0);
  CHECK(l.sends.last <= l.sends.sum);
  CHECK(l.sends.counts[0] == 0); // no work request takes less than a nanosecond
  CHECK(l.remote.count() == 0);
  CHECK(t.b.latencies().sends.count() == 0); // this one was not asked

  const auto target = t.pool.allocate(4096);
  outcome<void> lent;
  outcome<std::variant<registered_buffer, remote_region>> arrived;
  t.b.async_send_region(target, lent.handler());
  t.a.async_receive_region(arrived.handler());
  t.until([&] { return lent.done() && arrived.done(); });
  REQUIRE(arrived.succeeded());
  std::vector<char> bytes(100);
  sent read;
  t.a.async_read(asio::buffer(bytes), std::get<remote_region>(arrived.value), read.handler());
  t.until([&] { return read.done(); });
  REQUIRE(read.succeeded());
  l = t.a.latencies();
  CHECK(l.remote.count() == 1);
  const auto links = statistics(t.io).links;
  CHECK(std::count_if(links.begin(), links.end(), [](const auto& x) { return x.latencies; }) == 1);
}

TEST_CASE("a link reports its credits and the work requests in flight") {
  connection_options apart, few;
  apart.gather = false; // each message takes a receive
  few.receives = 8;
  talk t(apart, few);
  t.until([&] { return t.a.statistics().requests_in_flight == 0; });
  const std::uint32_t first = t.a.statistics().credits;
  CHECK(first >= 7); // on iWARP the connector has sent a frame
  CHECK(first <= 8);
  std::vector<sent> sends(12);
  const auto data = pattern(100, 1);
  for (sent& s : sends)
    t.a.async_send(asio::buffer(data), s.handler());
  CHECK(t.a.statistics().requests_in_flight == first - 3);
  CHECK(t.a.statistics().credits == 3); // for the library's own frames
  std::vector<outcome<message>> received(sends.size());
  for (auto& r : received)
    t.b.async_receive(r.handler());
  t.until([&] { return received.back().done() && sends.back().done(); });
  t.until([&] { return t.a.statistics().requests_in_flight == 0; });
  t.until([&] { return t.a.statistics().credits > 3; });
}

TEST_CASE("another thread makes reports while links work and end") {
  std::atomic<bool> over{false};
  std::atomic<int> reports{0};
  talk t;
  t.a.measure_latency();
  std::thread reader([&] {
    while (!over) {
      const context_statistics s = statistics(t.io);
      if (!to_json(s).empty() && !to_prometheus(s).empty())
        ++reports;
    }
  });
  while (reports == 0)
    std::this_thread::yield();
  for (int i = 0; i < 100; ++i)
    t.exchange(64);
  t.a.close();
  t.b.close();
  const int before = reports;
  while (reports <= before + 1)
    std::this_thread::yield();
  over = true;
  reader.join();
}

} // namespace test::context_statistics_tests
