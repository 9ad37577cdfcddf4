// SPDX-License-Identifier: BSL-1.0
// Data of the program's behind a handshake.
#include "catch.hpp"
#include "connecting/handshake.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;

handshake a_handshake() {
  handshake h;
  h.what = handshake::kind::message;
  h.receives = 8;
  h.receive_size = 4096;
  h.max_reads = 16;
  return h;
}

std::vector<std::byte> a_record() {
  const handshake_bytes bytes = encode(a_handshake());
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(handshake::base_size)};
}

} // namespace

TEST_CASE("data of the program follow a handshake record, and come back exactly") {
  const std::size_t size = GENERATE(0u, 1u, 32u, 200u, handshake::most_data);
  const std::size_t padding = GENERATE(0u, 1u, 28u);
  std::vector<std::byte> data;
  for (std::size_t i = 0; i != size; ++i)
    data.push_back(static_cast<std::byte>(i % 5)); // some of them end with a zero
  std::vector<std::byte> bytes = with_data(a_record(), data);
  bytes.resize(bytes.size() + padding);
  handshake h;
  CHECK(!decode(bytes, h));
  CHECK(h.receive_size == 4096);
  CHECK(is_record(bytes));
  CHECK(std::ranges::equal(program_data(bytes), data));
}

TEST_CASE("data of the program that are cut, or that have others behind them, are no record") {
  const std::vector<std::byte> data(10, std::byte(7));
  std::vector<std::byte> bytes = with_data(a_record(), data);
  SECTION("cut") { bytes.pop_back(); }
  SECTION("others behind them") { bytes.insert(bytes.end(), {std::byte(0), std::byte(1)}); }
  SECTION("a size that is too small") { bytes[20] = std::byte(9); }
  SECTION("a size that is too large") { bytes[20] = std::byte(11); }
  handshake h;
  CHECK(decode(bytes, h) == error::incompatible_peer);
  CHECK_FALSE(is_record(bytes));
}

TEST_CASE("private data without a handshake record are the program's") {
  const std::vector<std::byte> none, some(3, std::byte(1));
  CHECK(program_data(none).empty());
  CHECK(std::ranges::equal(program_data(some), some));
  handshake h = a_handshake();
  h.address.emplace().address.number = 7;
  h.address->address.lid = 1;
  h.address->address.mtu = IBV_MTU_1024;
  const handshake_bytes with_address = encode(h); // never sent by rdma_cm
  CHECK(!decode(with_address, h));
  CHECK_FALSE(is_record(with_address));
  CHECK(std::ranges::equal(program_data(with_address), with_address));
}
