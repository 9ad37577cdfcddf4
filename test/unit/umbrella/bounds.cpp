// SPDX-License-Identifier: BSL-1.0
// The bounds of docs/security.md, and the calculator's defaults, are those of the code.
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
#include "streams/stream_impl.hpp"
#include "streams/stream_inbox.hpp"

#include <chrono>
#include <concepts>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
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

} // namespace

TEST_CASE("the bounds of docs/security.md are those of the code") {
  std::map<std::string, std::string> code;
#define ADD(type, member) code[#type "::" #member] = text(type().member)
#define ADD_CONSTANT(type, member) code[#type "::" #member] = text(detail::type::member)
  ADD(acceptor_options, backlog);
  ADD_CONSTANT(acceptor_impl, most_a_turn);
  ADD_CONSTANT(cm_service, most_ends);
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
