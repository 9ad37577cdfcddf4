// SPDX-License-Identifier: BSL-1.0
#include "iwarp/mpa_start.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;
using namespace soft::iwarp::test;
using status = start_reader::status;

namespace {

const std::string request_key = to_hex(hex("4d504120 49442052 65712046 72616d65"));
const std::string reply_key = to_hex(hex("4d504120 49442052 65702046 72616d65"));

start_error error_of(bool reply, std::string_view text) {
  start_reader reader(reply);
  const auto r = reader.feed(hex(text));
  CHECK((r.state == status::failed) == (reader.error() != start_error::none));
  return reader.error();
}

bool same(const start_frame& a, const start_frame& b) {
  return a.reply == b.reply && a.rejected == b.rejected && a.markers == b.markers &&
         a.crc == b.crc && a.revision == b.revision && a.enhanced == b.enhanced && a.ird == b.ird &&
         a.ord == b.ord && a.peer_to_peer == b.peer_to_peer && a.rtr == b.rtr &&
         std::ranges::equal(a.private_data(), b.private_data());
}

} // namespace

TEST_CASE("A request of revision 1 has the layout of RFC 5044, section 7.1.1") {
  start_frame f;
  f.revision = 1;
  f.crc = true;
  REQUIRE(f.set_private_data(hex("aabbcc")));
  CHECK(to_hex(encode(f).view()) == request_key + to_hex(hex("40 01 0003 aabbcc")));
}

TEST_CASE("A reply with all flags has the layout of RFC 6581, sections 6 and 9") {
  start_frame f;
  f.reply = true;
  f.rejected = true;
  f.markers = true;
  f.crc = true;
  f.enhanced = true;
  f.ird = 0x1234;
  f.ord = 0x0567;
  f.peer_to_peer = true;
  f.rtr = rtr_kinds::rdma_read;
  REQUIRE(f.set_private_data(hex("77")));
  CHECK(to_hex(encode(f).view()) == reply_key + to_hex(hex("f0 02 0005 9234 4567 77")));
  f.peer_to_peer = false;
  f.rtr = rtr_kinds::rdma_write | rtr_kinds::zero_length_fulpdu;
  CHECK(to_hex(encode(f).view()) == reply_key + to_hex(hex("f0 02 0005 5234 8567 77")));
}

TEST_CASE("Every start frame is read as it was written, in any pieces, and no byte after it") {
  random_engine random(5);
  for (int round = 0; round != 300; ++round) {
    start_frame f;
    f.reply = random() % 2 != 0;
    f.rejected = f.reply && random() % 4 == 0;
    f.markers = random() % 2 != 0;
    f.crc = random() % 2 != 0;
    f.revision = random() % 2 != 0 ? 2 : 1;
    f.enhanced = f.revision == 2 && random() % 2 != 0;
    if (f.enhanced) {
      f.ird = static_cast<std::uint16_t>(random() & 0x3fff);
      f.ord = static_cast<std::uint16_t>(random() & 0x3fff);
      f.peer_to_peer = random() % 2 != 0;
      f.rtr = static_cast<rtr_kinds>(random() % 8);
    }
    REQUIRE(f.set_private_data(pattern(number(random, 0, f.max_private_data()), random())));
    const start_bytes encoded = encode(f);
    bytes stream(encoded.view().begin(), encoded.view().end());
    append(stream, pattern(30, random()));

    start_reader reader(f.reply);
    std::size_t at = 0;
    while (true) {
      const std::size_t n = std::min<std::size_t>(number(random, 1, 40), stream.size() - at);
      const auto r = reader.feed(std::span(stream).subspan(at, n));
      at += r.consumed;
      if (r.state == status::done)
        break;
      REQUIRE(r.state == status::more);
      REQUIRE(r.consumed == n);
      REQUIRE(at < encoded.size);
    }
    CHECK(at == encoded.size);
    CHECK(same(reader.frame(), f));
    CHECK(reader.feed(stream).consumed == 0);
  }
}

TEST_CASE("A start frame cut at each byte is read") {
  start_frame f;
  f.enhanced = true;
  f.ird = 3;
  REQUIRE(f.set_private_data(pattern(20, 6)));
  const start_bytes encoded = encode(f);
  for (std::size_t cut = 0; cut <= encoded.size; ++cut) {
    start_reader reader(false);
    reader.feed(encoded.view().first(cut));
    CHECK(reader.feed(encoded.view().subspan(cut)).state == status::done);
    CHECK(same(reader.frame(), f));
  }
}

TEST_CASE("Private data is limited to 512 bytes, and to 508 in an enhanced frame") {
  start_frame f;
  CHECK(f.set_private_data(bytes(512)));
  CHECK(encode(f).size == 532);
  CHECK_FALSE(f.set_private_data(bytes(513)));
  CHECK(f.private_data().size() == 512);
  start_frame e;
  e.enhanced = true;
  CHECK(e.set_private_data(bytes(508)));
  CHECK(encode(e).size == 532);
  CHECK_FALSE(e.set_private_data(bytes(509)));

  CHECK(error_of(false, request_key + "00020200") == start_error::none);
  CHECK(error_of(false, request_key + "00020201") == start_error::private_data_length);
  CHECK(error_of(false, request_key + "0002ffff") == start_error::private_data_length);
  CHECK(error_of(false, request_key + "10020201") == start_error::private_data_length);
}

TEST_CASE("A wrong key is an error at its first wrong byte") {
  CHECK(error_of(false, reply_key) == start_error::key);
  CHECK(error_of(true, request_key) == start_error::key);
  for (std::size_t i = 0; i != start_frame::key_size; ++i) {
    bytes key = hex(request_key);
    key.resize(i + 1);
    start_reader good(false);
    CHECK(good.feed(key).state == status::more);
    key[i] ^= std::byte{1};
    start_reader bad(false);
    CHECK(bad.feed(key).state == status::failed);
    CHECK(bad.error() == start_error::key);
  }
}

TEST_CASE("Only the revisions 1 and 2 are accepted") {
  CHECK(error_of(false, request_key + "00000000") == start_error::revision);
  CHECK(error_of(false, request_key + "00010000") == start_error::none);
  CHECK(error_of(false, request_key + "00020000") == start_error::none);
  CHECK(error_of(false, request_key + "00030000") == start_error::revision);
  CHECK(error_of(true, reply_key + "00ff0000") == start_error::revision);
}

TEST_CASE("An enhanced frame without enhanced data is an error, except in a rejection") {
  for (const char* length : {"0000", "0001", "0003"})
    CHECK(error_of(false, request_key + "1002" + length) == start_error::enhanced_data_length);
  CHECK(error_of(false, request_key + "1002000400000000") == start_error::none);
  CHECK(error_of(true, reply_key + "10020000") == start_error::enhanced_data_length);
  start_reader reader(true);
  REQUIRE(reader.feed(hex(reply_key + "30020000")).state == status::done);
  CHECK(reader.frame().rejected);
  CHECK_FALSE(reader.frame().enhanced);
}

TEST_CASE("The enhanced flag is reserved in revision 1") {
  start_reader reader(false);
  REQUIRE(reader.feed(hex(request_key + "10010002beef")).state == status::done);
  CHECK_FALSE(reader.frame().enhanced);
  CHECK(to_hex(reader.frame().private_data()) == "beef");
}

TEST_CASE("Reserved flags, and the reject flag of a request, are ignored") {
  start_reader reader(false);
  REQUIRE(reader.feed(hex(request_key + "2f020000")).state == status::done);
  CHECK(same(reader.frame(), start_frame()));
}

TEST_CASE("Each start error has its own text") {
  std::vector<std::string> texts;
  for (unsigned e = 0; e <= static_cast<unsigned>(start_error::no_matching_rtr); ++e)
    texts.emplace_back(describe(static_cast<start_error>(e)));
  std::ranges::sort(texts);
  CHECK(std::ranges::adjacent_find(texts) == texts.end());
}
