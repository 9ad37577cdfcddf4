// SPDX-License-Identifier: BSL-1.0
// The texts of a report: JSON, and the text format of Prometheus.
#include "catch.hpp"

#include <asio_rdma/statistics.hpp>
#include <boost/property_tree/json_parser.hpp>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace asio_rdma;

constexpr const char* odd_name = "a\"b\\c\nd";

context_statistics sample() {
  context_statistics s;
  context_statistics::link l;
  l.is_stream = true;
  l.device = odd_name;
  l.queue_pair = 17;
  l.state = queue_pair_state::connected;
  l.peer = "[fe80::1]:4000";
  l.counters.frames_sent = 18446744073709551615u;
  l.counters.credits = 5;
  l.latencies.emplace();
  l.latencies->sends.last = std::chrono::nanoseconds(1500);
  l.latencies->sends.sum = std::chrono::microseconds(2500);
  l.latencies->sends.counts[11] = 2; // from 1024 to 2047 ns
  l.latencies->sends.counts[39] = 1; // the last class
  s.links.push_back(l);
  l.queue_pair = 18;
  l.latencies.reset();
  s.links.push_back(l);
  s.acceptors.push_back({"10.0.0.1:7", {}});
  s.acceptors[0].counters.refused_backlog = 3;
  s.queue_pairs.push_back({"rxe0", 19, queue_pair_state::failed});
  s.completion_queues.push_back({"rxe0", completion_mode::busy, {}});
  s.pools.push_back({"rxe0", 1 << 30, {}});
  return s;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    result.push_back(line);
  return result;
}

struct metric {
  std::string type;
  std::map<std::string, std::string> samples; // labels with the suffix of the name, value
};

bool is_name(const std::string& s) {
  return !s.empty() &&
         s.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:") ==
             std::string::npos &&
         (s[0] < '0' || s[0] > '9');
}

/// Reads the text format, and checks its rules: the help and the type of a metric precede its
/// samples, which are one group, and no sample is there twice.
std::map<std::string, metric> parse(const std::string& text) {
  std::map<std::string, metric> result;
  CHECK((text.empty() || text.back() == '\n'));
  std::string now, helped;
  for (const std::string& line : lines_of(text)) {
    if (line.rfind("# HELP ", 0) == 0) {
      helped = line.substr(7, line.find(' ', 7) - 7);
      CHECK(is_name(helped));
      continue;
    }
    if (line.rfind("# TYPE ", 0) == 0) {
      now = line.substr(7, line.find(' ', 7) - 7);
      CHECK(now == helped);
      CHECK(result.count(now) == 0);
      result[now].type = line.substr(line.find(' ', 7) + 1);
      continue;
    }
    const std::size_t open = line.find('{');
    REQUIRE(open != std::string::npos);
    std::size_t at = open + 1;
    for (bool more = true; more;) { // the labels
      const std::size_t equals = line.find('=', at);
      REQUIRE(equals != std::string::npos);
      CHECK(is_name(line.substr(at, equals - at)));
      REQUIRE(line[equals + 1] == '"');
      for (at = equals + 2; line.at(at) != '"'; ++at)
        if (line[at] == '\\') {
          ++at;
          CHECK((line.at(at) == '\\' || line[at] == '"' || line[at] == 'n'));
        }
      ++at;
      more = line.at(at) == ',';
      ++at;
    }
    CHECK(line[at - 1] == '}');
    CHECK(line.at(at) == ' ');
    std::istringstream number(line.substr(at + 1));
    double value = 0;
    CHECK((number >> value));
    CHECK(number.peek() == std::istringstream::traits_type::eof());
    const std::string name = line.substr(0, open);
    CHECK(name.rfind(now, 0) == 0); // in the group of its metric
    const std::string suffix = name.substr(now.size());
    if (result[now].type == "histogram")
      CHECK((suffix == "_bucket" || suffix == "_sum" || suffix == "_count"));
    else
      CHECK(suffix.empty());
    CHECK(result[now]
              .samples.emplace(suffix + line.substr(open, at - open), line.substr(at + 1))
              .second);
  }
  return result;
}

} // namespace

TEST_CASE("the text for Prometheus obeys its format") {
  const std::string text = to_prometheus(sample());
  const auto metrics = parse(text);
  for (const auto& [name, m] : metrics) {
    CAPTURE(name);
    CHECK(name.rfind("asio_rdma_", 0) == 0);
    CHECK((m.type == "counter" || m.type == "gauge" || m.type == "histogram"));
    const bool total = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
    CHECK(total == (m.type == "counter"));
  }
  CHECK(metrics.at("asio_rdma_link_frames_sent_total").samples.size() == 2);
  CHECK(metrics.at("asio_rdma_acceptor_refused_backlog_total")
            .samples.at("{endpoint=\"10.0.0.1:7\"}") == "3");
}

TEST_CASE("labels are escaped") {
  const std::string text = to_prometheus(sample());
  CHECK(text.find("asio_rdma_link_frames_sent_total{kind=\"stream\",device=\"a\\\"b\\\\c\\nd\","
                  "queue_pair=\"17\",peer=\"[fe80::1]:4000\"} 18446744073709551615\n") !=
        std::string::npos);
}

TEST_CASE("the buckets of a histogram are cumulative, and the last is infinite") {
  const std::string text = to_prometheus(sample());
  const std::string bucket = "asio_rdma_link_send_latency_seconds_bucket{";
  std::uint64_t last = 0;
  double bound = -1;
  std::size_t buckets = 0;
  std::string last_bound;
  for (const std::string& line : lines_of(text))
    if (line.rfind(bucket, 0) == 0) {
      ++buckets;
      const std::size_t le = line.find("le=\"") + 4;
      last_bound = line.substr(le, line.find('"', le) - le);
      const auto count = std::stoull(line.substr(line.rfind(' ')));
      CHECK(count >= last);
      last = count;
      if (last_bound == "+Inf")
        continue;
      const double b = std::stod(last_bound);
      CHECK(b > bound);
      bound = b;
      CHECK(count == (b < 2047e-9 * 0.999 ? 0 : 2)); // two times from 1024 to 2047 ns
    }
  CHECK(buckets == latency_statistics::classes);
  CHECK(last_bound == "+Inf");
  CHECK(last == 3);
  CHECK(text.find("send_latency_seconds_sum{kind=\"stream\",device=\"a\\\"b\\\\c\\nd\",queue_pair="
                  "\"17\",peer=\"[fe80::1]:4000\"} 0.0025\n") != std::string::npos);
}

TEST_CASE("the JSON has the same values, and odd names survive") {
  std::istringstream in(to_json(sample()));
  boost::property_tree::ptree json;
  boost::property_tree::read_json(in, json);
  const auto& link = json.get_child("links").front().second;
  CHECK(link.get<std::string>("device") == odd_name);
  CHECK(link.get<std::uint64_t>("frames_sent") == 18446744073709551615u);
  CHECK(link.get<int>("send_latency.last") == 1500);
  CHECK(link.get_child("send_latency.counts").size() == latency_statistics::classes);
  CHECK(json.get_child("links").back().second.count("send_latency") == 0);
  CHECK(json.get_child("queue_pairs").front().second.get<std::string>("state") == "failed");
  CHECK(json.get_child("completion_queues").front().second.get<std::string>("mode") == "busy");
  CHECK(json.get_child("pools").front().second.get<int>("limit_bytes") == 1 << 30);
}
