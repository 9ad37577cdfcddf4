// SPDX-License-Identifier: BSL-1.0
#include "../options.hpp"
#include "../sizes.hpp"

#include "catch.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace test::perf_options_tests {

using namespace perf;
using sizes = std::vector<std::uint64_t>;

TEST_CASE("bytes have units of 1024", "[perf]") {
  CHECK(parse_bytes("1") == 1);
  CHECK(parse_bytes("64") == 64);
  CHECK(parse_bytes("4K") == 4096);
  CHECK(parse_bytes("3M") == 3u << 20);
  CHECK(parse_bytes("1G") == 1u << 30);
}

TEST_CASE("texts that are no bytes, none and too many bytes are refused", "[perf]") {
  for (const char* text :
       {"", "0", "0K", "K", "-1", "+1", "1k", "1KB", "1.5K", " 1", "1 ", "0x10", "x",
        "18446744073709551616", "17179869184G", "2G", "1025M", "1073741825"})
    CHECK_THROWS_AS(parse_bytes(text), std::invalid_argument);
  CHECK(parse_bytes("2G", std::uint64_t(1) << 40) == std::uint64_t(2) << 30);
}

TEST_CASE("sizes are a list of numbers and ranges", "[perf]") {
  CHECK(parse_sizes("64") == sizes{64});
  CHECK(parse_sizes("4K,64,64") == sizes{64, 4096});
  CHECK(parse_sizes("1:64") == sizes{1, 4, 16, 64});
  CHECK(parse_sizes("1:100") == sizes{1, 4, 16, 64, 100});
  CHECK(parse_sizes("1:8:2,3") == sizes{1, 2, 3, 4, 8});
  CHECK(parse_sizes("7:7") == sizes{7});
  CHECK(parse_sizes("1:1G").size() == 16);
  CHECK(parse_sizes("1:1G").back() == 1u << 30);
}

TEST_CASE("ranges that do not grow are refused", "[perf]") {
  for (const char* text : {"", ",", "1,", "1:", ":1", "2:1", "1:8:1", "1:8:0", "1:8:2:2", "1:2G"})
    CHECK_THROWS_AS(parse_sizes(text), std::invalid_argument);
}

TEST_CASE("a size is written as it can be read", "[perf]") {
  CHECK(size_text(1) == "1");
  CHECK(size_text(1536) == "1536");
  CHECK(size_text(4096) == "4K");
  CHECK(size_text(std::uint64_t(5) << 40) == "5120G");
  for (const std::uint64_t size : parse_sizes("1:1G:3"))
    CHECK(parse_bytes(size_text(size)) == size);
}

TEST_CASE("a place has a host, a port, or both", "[perf]") {
  const auto is = [](const char* text, const char* host, const char* port) {
    const place p = parse_place(text);
    return p.host == host && p.port == port;
  };
  CHECK(is("a", "a", default_port));
  CHECK(is("a:1", "a", "1"));
  CHECK(is(":0", "", "0"));
  CHECK(is("10.0.0.1:65535", "10.0.0.1", "65535"));
  CHECK(is("fe80::1", "fe80::1", default_port));
  CHECK(is("[fe80::1%eth0]:80", "fe80::1%eth0", "80"));
  CHECK(is("[::1]", "::1", default_port));
  for (const char* text : {"a:", "a:b", "a:65536", "a:-1", "[::1]:x"})
    CHECK_THROWS_AS(parse_place(text), usage_error);
}

TEST_CASE("the options of a client", "[perf]") {
  const options o = parse_options({"host:9",  "--what",    "tcp,send,tcp", "--mode", "busy",
                                   "--sizes", "1:4:2",     "--seconds",    "1.5",    "--window",
                                   "7",       "--measure", "latency",      "--json", "a",
                                   "--svg",   "b",         "--device",     "c",      "--memory",
                                   "2G",      "--quiet"});
  CHECK_FALSE(o.listen);
  CHECK(o.where.host == "host");
  CHECK(o.where.port == "9");
  CHECK(o.kinds == std::vector{kind::tcp, kind::send});
  CHECK(o.modes == std::vector{mode::busy});
  CHECK(o.metrics == std::vector{metric::latency});
  CHECK(o.sizes == sizes{1, 2, 4});
  CHECK(o.seconds == 1.5);
  CHECK(o.window == 7);
  CHECK(o.memory.window == std::uint64_t(2) << 30);
  CHECK(o.json == "a");
  CHECK(o.svg == "b");
  CHECK(o.device == "c");
  CHECK(o.progress == false);
}

TEST_CASE("the options of a server", "[perf]") {
  const options o = parse_options(
      {"--listen", "10.0.0.1:0", "--max-size", "1M", "--session", "9", "--clients", "3"});
  CHECK(o.listen);
  CHECK(o.where.host == "10.0.0.1");
  CHECK(o.where.port == "0");
  CHECK(o.memory.size == 1u << 20);
  CHECK(o.session == 9);
  CHECK(o.clients == 3);
  CHECK(parse_options({"--listen"}).where.host.empty());
  CHECK(parse_options({"--listen", "--progress"}).progress == true);
}

TEST_CASE("without options everything is measured on this machine", "[perf]") {
  const options o = parse_options({});
  CHECK(o.where.host.empty());
  CHECK(o.kinds.size() == 6);
  CHECK(o.modes.size() == 3);
  CHECK(o.metrics.size() == 2);
}

TEST_CASE("the help has the default port", "[perf]") {
  CHECK(help_text().find(std::string("port (") + default_port + ')') != std::string::npos);
}

TEST_CASE("wrong usage is refused", "[perf]") {
  const std::vector<std::vector<std::string>> wrong = {
      {"a", "b"},           {"--what", "rows"},
      {"--what", ""},       {"--mode", "fast"},
      {"--measure", "all"}, {"--seconds", "0"},
      {"--seconds", "nan"}, {"--seconds", "601"},
      {"--seconds", "1s"},  {"--window", "0"},
      {"--window", "1025"}, {"--sizes", "0"},
      {"--sizes"},          {"--nothing"},
      {"--memory", "0"},    {"--max-size", "1M"},
      {"--clients", "1"},   {"--listen", "a", "b"},
      {"a", "--listen"},    {"--listen", "--what", "tcp"},
      {"--session", "-1"},  {":80"}};
  for (const auto& words : wrong) {
    std::string all;
    for (const std::string& word : words)
      all += word + ' ';
    INFO(all);
    CHECK_THROWS_AS(parse_options(words), usage_error);
  }
}

} // namespace test::perf_options_tests
