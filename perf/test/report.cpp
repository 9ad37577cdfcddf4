// SPDX-License-Identifier: BSL-1.0
#include "../report/results.hpp"

#include "catch.hpp"

#include <boost/property_tree/json_parser.hpp>
#include <boost/property_tree/xml_parser.hpp>

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace test::perf_report_tests {

using namespace perf;
namespace tree = boost::property_tree;

results some_results() {
  results r;
  r.version = "1.2.3";
  r.machines = 2;
  r.seconds = 0.5;
  r.here = {{"device", "a&b<c>\"d\""}, {"transport", "iWARP"}, {"MTU", "4096"}, {"CPUs", "8"}};
  r.there = {{"device", "other"}, {"CPUs", "16"}};
  const latency_figures latency{1000, 1.5, 2.25, 2, 3, 40, 500};
  const bandwidth_figures bandwidth{2000, 0.5, 64, 4096};
  r.rows = {{kind::send, mode::event, 64, latency, bandwidth, {}},
            {kind::send, mode::event, 4096, latency, bandwidth, {}},
            {kind::write, mode::busy, 64, latency, {}, {}},
            {kind::read, mode::busy, 64, {}, {}, "latency: a \"reason\"\twith <signs>"},
            {kind::tcp, mode::event, 64, {}, bandwidth, {}}};
  return r;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    result.push_back(line);
  return result;
}

/// The words of the first line that begins with these.
std::vector<std::string> words_of(const std::string& text, const std::string& begin) {
  std::vector<std::string> result;
  for (const std::string& line : lines_of(text))
    if (line.rfind(begin, 0) == 0) {
      std::istringstream in(line);
      for (std::string word; in >> word;)
        result.push_back(word);
      return result;
    }
  return result;
}

TEST_CASE("numbers have three significant digits", "[perf]") {
  CHECK(rounded(0) == "0");
  CHECK(rounded(0.00001234) == "0.0000123");
  CHECK(rounded(0.1234) == "0.123");
  CHECK(rounded(1.234) == "1.23");
  CHECK(rounded(12.34) == "12.3");
  CHECK(rounded(9.996) == "10.0");
  CHECK(rounded(123.4) == "123");
  CHECK(rounded(1234567) == "1234567");
}

TEST_CASE("a bandwidth is operations by time", "[perf]") {
  const bandwidth_figures b{2000, 0.5, 64, 4096};
  CHECK(b.operations_per_second() == 4000);
  CHECK(b.bytes_per_second() == 4000.0 * 4096);
}

TEST_CASE("the table has both sides, a line for each row, and the problems", "[perf]") {
  const std::string text = to_table(some_results());
  CHECK(text.find("asio_rdma-perf 1.2.3, two machines, 0.500 s") == 0);
  CHECK(text.find("here:  device a&b<c>\"d\", transport iWARP, MTU 4096, CPUs 8\n") !=
        std::string::npos);
  CHECK(text.find("there: device other, CPUs 16\n") != std::string::npos);
  CHECK(words_of(text, "send") == std::vector<std::string>{"send", "event", "64", "2.00", "3.00",
                                                           "40.0", "500", "1000", "0.0164", "4000",
                                                           "64"});
  CHECK(words_of(text, "write") == std::vector<std::string>{"write", "busy", "64", "2.00", "3.00",
                                                            "40.0", "500", "1000", "-", "-", "-"});
  CHECK(words_of(text, "tcp") == std::vector<std::string>{"tcp", "-", "64", "-", "-", "-", "-", "-",
                                                          "0.0164", "4000", "64"});
  CHECK(text.find("read busy 64: latency: a \"reason\"") != std::string::npos);
  CHECK(text.find("iWARP: a write completes when its bytes were sent") != std::string::npos);
  CHECK(text.find("half of a round trip") != std::string::npos);
}

TEST_CASE("the columns of the table are aligned", "[perf]") {
  std::vector<std::size_t> widths;
  for (const std::string& line : lines_of(to_table(some_results())))
    for (const char* begin : {"what ", "send ", "write ", "tcp "})
      if (line.rfind(begin, 0) == 0)
        widths.push_back(line.size());
  REQUIRE(widths.size() == 5);
  for (const std::size_t width : widths)
    CHECK(width == widths.front());
}

TEST_CASE("JSON has the figures in full", "[perf]") {
  std::istringstream in(to_json(some_results()));
  tree::ptree all;
  REQUIRE_NOTHROW(tree::read_json(in, all));
  CHECK(all.get<int>("perf") == 1);
  CHECK(all.get<int>("machines") == 2);
  CHECK(all.get<std::string>("here.device") == "a&b<c>\"d\"");
  CHECK(all.get<std::string>("there.device") == "other");
  const tree::ptree& rows = all.get_child("results");
  REQUIRE(rows.size() == 5);
  const tree::ptree& first = rows.front().second;
  CHECK(first.get<std::string>("what") == "send");
  CHECK(first.get<int>("size") == 64);
  CHECK(first.get<double>("latency.p50") == 2);
  CHECK(first.get<double>(tree::ptree::path_type("latency/p99.9", '/')) == 40);
  CHECK(first.get<std::string>("latency.of") == "half round trip");
  CHECK(first.get<double>("bandwidth.bytes_per_second") == 4000.0 * 4096);
  CHECK(first.get<int>("bandwidth.window") == 64);
  CHECK(first.count("problem") == 0);
  const tree::ptree& failed = std::next(rows.begin(), 3)->second;
  CHECK(failed.count("latency") == 0);
  CHECK(failed.get<std::string>("problem") == "latency: a \"reason\"\twith <signs>");
}

TEST_CASE("results without facts are JSON, too", "[perf]") {
  std::istringstream in(to_json({}));
  tree::ptree all;
  CHECK_NOTHROW(tree::read_json(in, all));
}

/// The elements of a class, anywhere.
void collect(const tree::ptree& from, const std::string& name, std::vector<tree::ptree>& to) {
  for (const auto& [key, child] : from) {
    if (child.get<std::string>("<xmlattr>.class", "") == name)
      to.push_back(child);
    collect(child, name, to);
  }
}

std::vector<tree::ptree> bars_of(const results& r) {
  std::istringstream in(to_svg(r));
  tree::ptree all;
  REQUIRE_NOTHROW(tree::read_xml(in, all));
  CHECK(all.front().first == "svg");
  std::vector<tree::ptree> result;
  collect(all, "bar", result);
  return result;
}

TEST_CASE("the picture is XML with a bar for each figure", "[perf]") {
  const results r = some_results();
  // Latencies of three rows, bandwidths of two; TCP's bandwidth beside both modes.
  const std::vector<tree::ptree> bars = bars_of(r);
  CHECK(bars.size() == 7);
  const std::string text = to_svg(r);
  std::istringstream in(text);
  tree::ptree all;
  tree::read_xml(in, all);
  const double width = all.get<double>("svg.<xmlattr>.width"),
               height = all.get<double>("svg.<xmlattr>.height");
  for (const tree::ptree& bar : bars) {
    const double x = bar.get<double>("<xmlattr>.x"), y = bar.get<double>("<xmlattr>.y");
    CHECK(x >= 0);
    CHECK(x + bar.get<double>("<xmlattr>.width") <= width);
    CHECK(y >= 0);
    CHECK(bar.get<double>("<xmlattr>.height") > 0);
    CHECK(y + bar.get<double>("<xmlattr>.height") <= height);
  }
}

TEST_CASE("a longer latency has a higher bar", "[perf]") {
  results r = some_results();
  r.rows.resize(2);
  r.rows[0].bandwidth = r.rows[1].bandwidth = {};
  r.rows[1].latency->p50 = 30;
  const std::vector<tree::ptree> bars = bars_of(r);
  REQUIRE(bars.size() == 2);
  CHECK(bars[0].get<double>("<xmlattr>.height") < bars[1].get<double>("<xmlattr>.height"));
}

TEST_CASE("the picture of no results is XML", "[perf]") { CHECK(bars_of({}).empty()); }

} // namespace test::perf_report_tests
