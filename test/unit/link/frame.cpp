// SPDX-License-Identifier: BSL-1.0

#include "link/frame.hpp"
#include "catch.hpp"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace asio_rdma;
using namespace asio_rdma::detail;

std::vector<std::byte> frame_of(const frame_header& h) {
  const frame_bytes head = encode(h);
  std::vector<std::byte> result(head.begin(), head.end());
  result.resize(result.size() + h.length);
  return result;
}

frame_header a_header(frame_type t) {
  frame_header h;
  h.type = t;
  h.credits = 0x0102;
  return h;
}

/// A valid header of each type.
std::vector<frame_header> good_headers() {
  std::vector<frame_header> result;
  const auto add = [&](frame_type t, std::uint32_t length, std::uint32_t id,
                       std::uint32_t immediate, std::uint8_t flags) {
    frame_header h = a_header(t);
    h.length = length;
    h.id = id;
    h.immediate = immediate;
    h.flags = flags;
    result.push_back(h);
  };
  add(frame_type::message, 0, 0, 0, 0);
  add(frame_type::message, 100, 0, 0, 0);
  add(frame_type::message, 100, 0, 7, 1);
  add(frame_type::gathered, 24, 0, 0, 0);
  add(frame_type::data, 1, 0, 7, 0);
  add(frame_type::offer, 24, 9, 0, 0);
  add(frame_type::offer, 24, 9, 7, 1);
  add(frame_type::written, 0, 0, 7, 1);
  add(frame_type::lent, 40, 9, 0, 0);
  add(frame_type::returned, 8, 9, 0, 0);
  add(frame_type::credits, 0, 0, 0, 0);
  add(frame_type::taken, 0, 9, 0, 0);
  add(frame_type::refused, 0, 9, 1, 0);
  add(frame_type::request, 24, 9, 0, 0);
  add(frame_type::granted, 40, 9, 0, 0);
  add(frame_type::denied, 0, 9, 7, 0);
  add(frame_type::renew, 16, 9, 0, 0);
  add(frame_type::renewed, 16, 9, 0, 0);
  add(frame_type::ended, 0, 9, 5, 0);
  add(frame_type::release, 0, 9, 0, 0);
  add(frame_type::shutdown, 0, 0, 0, 0);
  add(frame_type::goodbye, 0, 0, 0, 0);
  add(frame_type::withdraw, 0, 9, 0, 0);
  add(frame_type::withdrawn, 0, 9, 7, 0);
  add(frame_type::dropped, 0, 9, 7, 0);
  add(frame_type::query, 0, 0, 0, 0);
  add(frame_type::progress, 0, 0, 7, 0);
  add(frame_type::resized, 0, 0, 100, 0);
  add(frame_type::no_data, 0, 0, 0, 0);
  add(frame_type::recall, 0, 9, 0, 0);
  add(frame_type::yielded, 0, 9, 0, 0);
  return result;
}

template <class Payload>
std::span<const std::byte> encoded(const Payload& p, payload_bytes& to) {
  to.fill(std::byte(0xee));
  encode(p, to);
  return std::span(to).template first<Payload::size>();
}

template <class Payload>
bool accepts(std::span<const std::byte> bytes) {
  Payload p;
  return !decode(bytes, p);
}

/// The bytes with a 32-bit number replaced.
std::vector<std::byte> with(std::span<const std::byte> bytes, std::size_t at, std::uint32_t v) {
  std::vector<std::byte> result(bytes.begin(), bytes.end());
  for (std::size_t i = 0; i < 4; ++i)
    result[at + i] = static_cast<std::byte>(v >> (8 * i));
  return result;
}

} // namespace

TEST_CASE("a frame header has the documented layout") {
  frame_header h;
  h.type = frame_type::offer;
  h.flags = 1;
  h.credits = 0x0203;
  h.length = 0x04050607;
  h.id = 0x08090a0b;
  h.immediate = 0x0c0d0e0f;
  const unsigned char expected[16] = {3, 1, 3, 2, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12};
  CHECK(std::memcmp(encode(h).data(), expected, sizeof(expected)) == 0);
}

TEST_CASE("every type of frame comes back as it was") {
  std::vector<bool> seen(256);
  for (const frame_header& h : good_headers()) {
    frame_header back;
    REQUIRE(!decode(frame_of(h), back));
    CHECK(back == h);
    seen[static_cast<std::size_t>(h.type)] = true;
  }
  for (unsigned t = 0; t < 256; ++t) { // and no other type is known
    frame_header h = a_header(static_cast<frame_type>(t));
    frame_header back;
    if (!seen[t])
      CHECK(decode(frame_of(h), back) == error::protocol_violation);
  }
}

TEST_CASE("a frame that is not as documented is a violation") {
  frame_header back;
  for (const frame_header& good : good_headers()) {
    INFO("type " << unsigned(good.type));
    const std::vector<std::byte> bytes = frame_of(good);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      CHECK(decode(std::span(bytes).first(n), back));
    std::vector<std::byte> longer = bytes;
    longer.emplace_back();
    CHECK(decode(longer, back));
    for (unsigned bit = 1; bit < 8; ++bit) { // unknown flags
      frame_header h = good;
      h.flags = static_cast<std::uint8_t>(h.flags | 1U << bit);
      CHECK(decode(frame_of(h), back));
    }
    if (good.id == 0) {
      frame_header h = good;
      h.id = 1;
      CHECK(decode(frame_of(h), back));
    }
    if (good.immediate == 0) {
      frame_header h = good;
      h.immediate = 1;
      CHECK(decode(frame_of(h), back));
    } else {
      frame_header h = good;
      h.flags ^= frame_header::has_immediate;
      CHECK(decode(frame_of(h), back));
    }
    const bool any = good.type == frame_type::message || good.type == frame_type::gathered ||
                     good.type == frame_type::data;
    if (!any) {
      frame_header h = good;
      h.length += 1;
      CHECK(decode(frame_of(h), back));
    }
  }
  for (const frame_type t : {frame_type::refused, frame_type::denied, frame_type::ended})
    for (const std::uint32_t reason : {0U, 8U, 0xffffffffU}) {
      frame_header h = a_header(t);
      h.immediate = reason;
      CHECK(decode(frame_of(h), back));
    }
  CHECK(decode(frame_of(a_header(frame_type::data)), back)); // no bytes
}

TEST_CASE("payloads come back as they were") {
  payload_bytes bytes;
  const remote_buffer memory{0x0102030405060708, 0x1112131415161718, 0x21222324};
  offer_payload offer;
  REQUIRE(!decode(encoded(offer_payload{memory}, bytes), offer));
  CHECK(offer.memory == memory);
  const unsigned char expected[24] = {8,    7,    6,    5,    4,    3,    2,    1,
                                      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
                                      0x24, 0x23, 0x22, 0x21, 0,    0,    0,    0};
  CHECK(std::memcmp(bytes.data(), expected, sizeof(expected)) == 0);
  for (const auto lease : {std::chrono::microseconds(0), std::chrono::microseconds(0x0102030405),
                           longest_lease, no_lease}) {
    request_payload request;
    REQUIRE(!decode(
        encoded(request_payload{77, lease, remote_rights::read | remote_rights::atomic}, bytes),
        request));
    CHECK(request.bytes == 77);
    CHECK(request.lease == lease);
    CHECK(request.rights == (remote_rights::read | remote_rights::atomic));
    grant_payload grant;
    REQUIRE(!decode(encoded(grant_payload{memory, lease, 0x31323334, remote_rights::write}, bytes),
                    grant));
    CHECK(grant.memory == memory);
    CHECK(grant.lease == lease);
    CHECK(grant.grant == 0x31323334);
    CHECK(grant.rights == remote_rights::write);
    loan_payload loan;
    REQUIRE(!decode(
        encoded(loan_payload{memory, lease, 0x5152535455565758, remote_rights::write}, bytes),
        loan));
    CHECK(loan.memory == memory);
    CHECK(loan.lease == lease);
    CHECK(loan.tag == 0x5152535455565758);
    CHECK(loan.rights == remote_rights::write);
    lease_payload l;
    REQUIRE(!decode(encoded(lease_payload{lease, 0x41424344}, bytes), l));
    CHECK(l.lease == lease);
    CHECK(l.grant == 0x41424344);
  }
}

TEST_CASE("payloads that cannot be are a violation") {
  payload_bytes bytes;
  const remote_buffer memory{4096, 100, 5};
  const std::chrono::microseconds second(1000000);
  constexpr std::uint32_t ones = 0xffffffff;

  auto b = encoded(offer_payload{memory}, bytes);
  CHECK(accepts<offer_payload>(b));
  CHECK(!accepts<offer_payload>(b.first(23)));
  CHECK(!accepts<offer_payload>(with(b, 20, 1)));
  CHECK(!accepts<offer_payload>(with(b, 8, 0)));                        // empty
  CHECK(!accepts<offer_payload>(with(with(b, 0, ones - 98), 4, ones))); // wraps around
  CHECK(accepts<offer_payload>(with(with(b, 0, ones - 99), 4, ones)));  // up to the end

  b = encoded(request_payload{1, second, remote_rights::all}, bytes);
  CHECK(accepts<request_payload>(b));
  CHECK(!accepts<request_payload>(b.first(8)));
  CHECK(!accepts<request_payload>(with(b, 0, 0)));           // no bytes
  CHECK(!accepts<request_payload>(with(b, 12, 0x00040001))); // too long a lease
  CHECK(!accepts<request_payload>(with(b, 12, ones)));
  CHECK(!accepts<request_payload>(with(b, 16, 0))); // no rights
  CHECK(!accepts<request_payload>(with(b, 16, 8)));
  CHECK(!accepts<request_payload>(with(b, 20, 1)));

  b = encoded(grant_payload{memory, second, 3, remote_rights::read}, bytes);
  CHECK(accepts<grant_payload>(b));
  CHECK(!accepts<grant_payload>(b.first(39)));
  CHECK(!accepts<grant_payload>(with(b, 8, 0)));
  CHECK(!accepts<grant_payload>(with(b, 20, 0x00040001)));
  CHECK(!accepts<grant_payload>(with(b, 32, 0)));
  CHECK(!accepts<grant_payload>(with(b, 36, 1)));

  b = encoded(loan_payload{memory, second, 0, remote_rights::read}, bytes);
  CHECK(accepts<loan_payload>(b));
  CHECK(!accepts<loan_payload>(b.first(39)));
  CHECK(!accepts<loan_payload>(with(b, 8, 0)));
  CHECK(!accepts<loan_payload>(with(b, 20, 0x00040001)));
  CHECK(accepts<loan_payload>(with(with(b, 24, ones), 28, ones))); // any tag
  CHECK(!accepts<loan_payload>(with(b, 36, 0)));

  b = encoded(tag_payload{0x0102030405060708}, bytes);
  CHECK(accepts<tag_payload>(b));
  CHECK(std::to_integer<int>(b[0]) == 8);
  CHECK(!accepts<tag_payload>(b.first(7)));

  b = encoded(lease_payload{second, 1}, bytes);
  CHECK(accepts<lease_payload>(b));
  CHECK(!accepts<lease_payload>(b.first(15)));
  CHECK(!accepts<lease_payload>(with(b, 12, 1)));
  CHECK(!accepts<lease_payload>(with(b, 4, 0x00040001)));
}

TEST_CASE("every refusal is an error that gives the reason") {
  for (std::uint32_t r = 1; r <= static_cast<std::uint32_t>(refusal::closed); ++r) {
    const error_code ec = to_error(static_cast<refusal>(r));
    CHECK(ec);
    CHECK(ec != error::protocol_violation);
    CHECK(!ec.message().empty());
  }
}

TEST_CASE("rights and access are each other's image") {
  for (std::uint32_t r = 0; r <= static_cast<std::uint32_t>(remote_rights::all); ++r)
    CHECK(to_rights(to_access(static_cast<remote_rights>(r))) == static_cast<remote_rights>(r));
  CHECK(to_rights(access::local_write | access::window_bind) == remote_rights::none);
  CHECK(within(remote_rights::read, remote_rights::all));
  CHECK(!within(remote_rights::all, remote_rights::read));
}
