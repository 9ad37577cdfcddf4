// SPDX-License-Identifier: BSL-1.0
// The bounds of docs/security.md, and the calculator's defaults, are those of the code, and the
// page has each bound of the code.
#include <catch.hpp>

#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/shared_receives.hpp>
#include <asio_rdma/stream_options.hpp>

#include "connecting/acceptor_impl.hpp"
#include "connection/connection_impl.hpp"
#include "global/global_memory_impl.hpp"
#include "link/link_transfer.hpp"
#include "link/silent_peer.hpp"
#include "memory/slow_allocation.hpp"
#include "streams/stream_impl.hpp"
#include "streams/stream_inbox.hpp"

#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace test::bounds_tests {

using namespace asio_rdma;

namespace {

std::string text(std::integral auto value) {
  const auto v = static_cast<std::uint64_t>(value);
  for (const auto& [unit, name] :
       {std::pair(std::uint64_t(1) << 30, " GiB"), std::pair(std::uint64_t(1) << 20, " MiB")})
    if (v != 0 && v % unit == 0)
      return std::to_string(v / unit) + name;
  return std::to_string(v);
}
std::string text(std::chrono::microseconds value) {
  using namespace std::chrono;
  if (value % minutes(1) == minutes(0))
    return std::to_string(value / minutes(1)) + " min";
  return value % seconds(1) == seconds(0) ? std::to_string(value / seconds(1)) + " s"
                                          : std::to_string(value / milliseconds(1)) + " ms";
}

// The defaults that the page names.
std::map<std::string, std::string> of_page() {
  std::ifstream page(ASIO_RDMA_DOCS "/security.md");
  REQUIRE(page);
  const std::regex cell(R"(\| `(\w+::\w+)` \(([^)]*)\) \|$)");
  std::map<std::string, std::string> result;
  for (std::string line; std::getline(page, line);)
    if (std::smatch found; std::regex_search(line, found, cell))
      CHECK(result.emplace(found[1], found[2]).second); // one row each
  return result;
}

using names = std::set<std::string>;

// Calls `line` with the type that is being defined, if the line is part of a structure of options,
// and with the line without its comment.
template <class Line>
void for_each_line(const char* folder, Line line) {
  const std::regex begin(R"(^struct (\w+_options) \{)");
  for (const auto& e :
       std::filesystem::recursive_directory_iterator(ASIO_RDMA_DOCS "/.." + std::string(folder))) {
    if (!e.is_regular_file())
      continue;
    std::ifstream in(e.path());
    std::string type;
    for (std::string text; std::getline(in, text);) {
      std::smatch found;
      if (std::regex_search(text, found, begin))
        type = found[1];
      else if (text == "};")
        type.clear();
      line(type, text.substr(0, text.find("//")));
    }
  }
}

// Constants whose names are those of bounds, and which bound nothing that a peer makes this side
// keep.
const names other_constants{
    "most_bytes",         // a pool's limit; the bytes of a message that is sent
    "most_calls",         // of threads for calls of rdma_cm
    "most_credits",       // by the width of a field
    "most_data",          // of a request, by the device
    "most_gathered",      // within a receive
    "most_grants",        // the largest value of `remote_memory_options::grants`
    "most_idle_visits",   // before a stream waits for an event
    "most_kept",          // memory of operations; events of the device
    "most_patience",      // of this side's attempts to connect
    "most_port_trials",   // of this side's attempts to connect
    "most_rxe_retries",   // of this side's requests
    "most_send_elements", // of one's own requests
    "most_texts",         // of errors
    "most_threads",       // that allocate memory
};

// Options that bound nothing of a peer's, of objects that peers use.
const names other_options{
    "accept_options::admit",
    "accept_options::data",
    "memory_pool_options::log",
    "connection_options::gather",
    "connection_options::own_domain",
    "connection_options::queue_pair",
    "connection_options::remote_memory",
    "connection_options::sends",
    "global_memory_options::lanes",
    "global_memory_options::shared_lanes",
    "memory_pool_options::first_arena",
    "memory_pool_options::huge_pages",
    "memory_pool_options::rights",
    "memory_pool_options::zeroed",
    "remote_memory_options::default_lease",
    "remote_memory_options::rights",
    "shared_receives_options::receive_size",
    "stream_options::own_domain",
    "stream_options::queue_pair",
};
// Options of objects that this side uses.
const names other_types{"alock_options",      "completion_queue_options",
                        "connect_options",    "log_options",
                        "queue_pair_options", "shared_receive_queue_options"};

/// Each name of the code is in the page or among the others, not in both, and the others exist.
template <class Page>
void check_listed(const names& in_code, const Page& in_page, const names& others) {
  for (const std::string& name : in_code) {
    CAPTURE(name);
    CHECK(in_page.count(name) + others.count(name) == 1);
  }
  for (const std::string& name : others) {
    CAPTURE(name);
    CHECK(in_code.count(name) == 1);
  }
}

} // namespace

TEST_CASE("each constant with the name of a bound is in docs/security.md, or bounds nothing of a "
          "peer's") {
  names in_page, in_code;
  for (const auto& [name, value] : of_page())
    in_page.insert(name.substr(name.find("::") + 2));
  const std::regex constant(R"(\b(most_\w+)\s*(=|\{))");
  for (const char* const folder : {"/src", "/include"})
    for_each_line(folder, [&](const std::string&, const std::string& line) {
      if (line.find("constexpr") == std::string::npos)
        return;
      for (std::sregex_iterator i(line.begin(), line.end(), constant), end; i != end; ++i)
        in_code.insert((*i)[1]);
    });
  CHECK(in_code.size() > in_page.size() / 4);
  check_listed(in_code, in_page, other_constants);
}

TEST_CASE("each option is in docs/security.md, or bounds nothing of a peer's") {
  const auto in_page = of_page();
  names in_code;
  const std::regex member(R"(detail::set\(\*this, (\w+), )");
  for_each_line("/include/asio_rdma", [&](const std::string& type, const std::string& line) {
    if (std::smatch found;
        !type.empty() && other_types.count(type) == 0 && std::regex_search(line, found, member))
      in_code.insert(type + "::" + found[1].str());
  });
  CHECK(in_code.size() > other_options.size());
  check_listed(in_code, in_page, other_options);
}

TEST_CASE("the bounds of docs/security.md are those of the code") {
  std::map<std::string, std::string> code;
#define ADD(type, member) code[#type "::" #member] = text(type().member)
#define ADD_CONSTANT(type, member) code[#type "::" #member] = text(detail::type::member)
  ADD(acceptor_options, backlog);
  ADD_CONSTANT(acceptor_impl, most_a_turn);
  ADD_CONSTANT(ending_ids, most_ends_of_source);
  ADD_CONSTANT(ending_ids, most_ends);
  ADD_CONSTANT(cm_service, most_ends_at_a_time);
  ADD_CONSTANT(cm_service, most_ends_of_source_at_a_time);
  ADD_CONSTANT(cm_service, most_ends_at_shutdown);
  ADD_CONSTANT(log_rate, most_a_second);
  ADD(acceptor_options, handshakes);
  ADD(accept_options, timeout);
  ADD(acceptor_options, patience);
  ADD(memory_pool_options, limit);
  ADD(connection_options, receives);
  ADD(connection_options, receive_size);
  ADD(connection_options, max_receive_size);
  ADD(connection_options, pull_bytes);
  ADD_CONSTANT(connection_impl, short_message);
  ADD_CONSTANT(connection_impl, small_message);
  ADD(connection_options, pulls);
  ADD(connection_options, max_message);
  ADD_CONSTANT(slow_allocations, most_a_period);
  CHECK(detail::slow_allocations::period == std::chrono::milliseconds(100)); // in the page's text
  ADD(connection_options, read_timeout);
  ADD_CONSTANT(read_pace, for_each);
  ADD(connection_options, offers);
  ADD(connection_options, keep_alive);
  ADD(remote_memory_options, bytes);
  ADD(remote_memory_options, grants);
  ADD(remote_memory_options, longest_lease);
  ADD(remote_memory_options, grace);
  ADD(stream_options, receives);
  ADD(stream_options, receive_size);
  ADD(stream_options, max_receive_size);
  code["stream_read_limits::read_ahead"] = text(detail::stream_read_limits().read_ahead);
  ADD(stream_options, sends);
  ADD(stream_options, linger);
  ADD_CONSTANT(stream_impl, most_lingers);
  ADD(stream_options, read_timeout);
  ADD(stream_options, keep_alive);
  ADD(shared_receives_options, per_link);
  ADD(shared_receives_options, receives);
  ADD_CONSTANT(global_memory_impl, most_strangers);
  ADD_CONSTANT(global_memory_impl, most_answers);
  ADD_CONSTANT(global_memory_impl, most_asked);
  ADD_CONSTANT(global_memory_impl, most_unsent);
  ADD_CONSTANT(global_memory_impl, most_hints);
  ADD_CONSTANT(global_memory_impl, most_loans);
  ADD_CONSTANT(global_node, most_zeroed);
  ADD(global_memory_options, in_flight);
#undef ADD
#undef ADD_CONSTANT
  CHECK(of_page() == code);
}

TEST_CASE("the calculator begins with the default options") {
  std::ifstream page(ASIO_RDMA_DOCS "/site/calculator.md");
  const std::string text(std::istreambuf_iterator<char>(page), {});
  const auto has = [&](const char* object, const auto& o, std::uint32_t bytes_of_frame) {
    std::ostringstream numbers;
    numbers << object << ": [" << o.receives << ", " << o.receive_size << ", " << o.max_receive_size
            << ", " << o.sends << ", " << bytes_of_frame << "]";
    INFO(numbers.str());
    CHECK(text.find(numbers.str()) != std::string::npos);
  };
  has("stream", stream_options(), detail::frame_transfer::room);
  has("connection", connection_options(), detail::connection_impl::gathered_room);
}

} // namespace test::bounds_tests
