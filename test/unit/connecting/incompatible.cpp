// SPDX-License-Identifier: BSL-1.0
// The text of the error for a peer of another protocol, version or kind of object.
#include "catch.hpp"
#include "connecting/handshake.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;

handshake hello_of(handshake::kind what) {
  handshake h;
  h.what = what;
  h.receives = 32;
  h.receive_size = 4096;
  h.max_reads = 16;
  return h;
}

bool says(const error_code& ec, const std::string& text) {
  return ec == error::incompatible_peer && ec.message().find(text) != std::string::npos;
}

} // namespace

TEST_CASE("the error of a record that does not fit says what differs") {
  using kind = handshake::kind;
  handshake_bytes bytes = encode(hello_of(kind::stream));
  handshake result;
  CHECK(
      says(incompatible(bytes, kind::message), "the peer has a stream and this side a connection"));
  CHECK(says(incompatible(bytes, kind::raw), "this side a bare queue pair"));
  CHECK(says(incompatible(bytes, kind::stream), "do not fit"));
  CHECK(says(incompatible(bytes), "do not fit"));
  bytes[4] = std::byte(17);
  CHECK(says(incompatible(bytes, kind::message),
             "version 17 of the protocol and this side version 5"));
  CHECK(says(decode(bytes, result), "version 17 "));
  bytes[0] = std::byte('B');
  CHECK(says(decode(bytes, result), "does not speak this library's protocol"));
  CHECK(says(decode(std::span(bytes).first(0), result), "does not speak this library's protocol"));
}

TEST_CASE("a refusal carries the record of the side that refuses") {
  using kind = handshake::kind;
  const handshake own = hello_of(kind::stream);
  const handshake_bytes record_bytes = encode(own);
  refusal_bytes bytes = encode_refusal(std::span(record_bytes).first(own.size()));
  error_code ec;
  REQUIRE(decode_refusal(bytes, kind::message, ec));
  CHECK(says(ec, "the peer has a stream and this side a connection"));
  // An earlier release reads the verdict alone.
  verdict v{};
  CHECK(!decode(std::span<const std::byte>(bytes).first<verdict_size>(), v));
  CHECK(v == verdict::incompatible);
  SECTION("of another version") {
    bytes[verdict_size + 4] = std::byte(9);
    REQUIRE(decode_refusal(bytes, kind::message, ec));
    CHECK(says(ec, "version 9 "));
  }
  SECTION("of an earlier release, which sends the verdict alone") {
    std::array<std::byte, 148> padded{};
    std::copy_n(bytes.begin(), verdict_size, padded.begin());
    for (const auto from : {std::span<const std::byte>(padded),
                            std::span<const std::byte>(bytes).first(verdict_size)}) {
      REQUIRE(decode_refusal(from, kind::message, ec));
      CHECK(ec == error::incompatible_peer);
      CHECK(ec.message() == make_error_code(error::incompatible_peer).message());
    }
  }
  SECTION("data of a program are none") {
    ec = error::rejected;
    CHECK(!decode_refusal(std::span(bytes).first(verdict_size - 1), kind::raw, ec));
    bytes[4] = static_cast<std::byte>(verdict::failed);
    CHECK(!decode_refusal(bytes, kind::raw, ec));
    bytes[0] = std::byte('X');
    CHECK(!decode_refusal(bytes, kind::raw, ec));
    CHECK(ec == error::rejected);
  }
}
