// SPDX-License-Identifier: BSL-1.0
#include "iwarp/fpdu_reader.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

bytes send_of(std::span<const std::byte> payload, bool crc = true, std::size_t ulpdu = 65535) {
  fpdu_writer writer(crc, ulpdu);
  return fpdus(writer, {.op = opcode::send, .length = static_cast<std::uint32_t>(payload.size())},
               payload);
}

} // namespace

TEST_CASE("The reader reports first, last and offset of each segment of a message") {
  const bytes payload = pattern(300, 1);
  memory_sink sink;
  fpdu_reader reader(true, sink);
  const bytes stream = send_of(payload, true, 128);
  CHECK(reader.feed(stream) == stream.size());
  REQUIRE(sink.ended.size() == 3);
  CHECK(sink.begun == sink.ended);
  CHECK(sink.ended[0].first);
  CHECK_FALSE(sink.ended[0].last);
  CHECK(sink.ended[0].message_offset == 0);
  CHECK_FALSE(sink.ended[1].first);
  CHECK(sink.ended[1].message_offset == 108);
  CHECK(sink.ended[2].last);
  CHECK(sink.ended[2].message_offset == 216);
  CHECK(sink.ended[2].length == 84);
  CHECK(sink.messages == std::vector<memory_sink::message>{{opcode::send, 0, payload}});
  CHECK(reader.at_boundary());
}

TEST_CASE("The offset of a tagged segment in its message is counted by the reader") {
  memory_sink sink;
  fpdu_reader reader(false, sink);
  fpdu_writer writer(false, 128);
  const bytes payload = pattern(250, 1);
  for (int i = 0; i != 2; ++i)
    reader.feed(fpdus(
        writer, {.op = opcode::rdma_write, .length = 250, .stag = sink_stag, .tagged_offset = 1000},
        payload));
  REQUIRE(sink.ended.size() == 6);
  CHECK(sink.ended[4].message_offset == 112);
  CHECK(sink.ended[4].tagged_offset == 1112);
  CHECK(sink.ended[3].first);
  CHECK(sink.ended[5].message_offset + sink.ended[5].length == 250);
  CHECK(std::ranges::equal(std::span(sink.tagged).subspan(1000, 250), payload));
}

TEST_CASE("A stopped reader takes nothing until the sink accepts the segment") {
  const bytes payload = pattern(50, 2);
  const bytes stream = send_of(payload);
  memory_sink sink;
  sink.not_now = 3;
  fpdu_reader reader(true, sink);
  const std::size_t taken = reader.feed(stream);
  CHECK(taken == 20);
  CHECK(reader.state() == reader_state::stopped);
  CHECK(reader.payload_pending() == 0);
  CHECK(reader.targets().empty());
  CHECK(reader.feed(std::span(stream).subspan(taken)) == 0);
  CHECK(reader.resume() == reader_state::stopped);
  CHECK(reader.resume() == reader_state::stopped);
  CHECK(reader.resume() == reader_state::reading);
  CHECK(reader.payload_pending() == 50);
  CHECK(reader.feed(std::span(stream).subspan(taken)) == stream.size() - taken);
  CHECK(sink.messages == std::vector<memory_sink::message>{{opcode::send, 0, payload}});
  CHECK(reader.resume() == reader_state::reading);
}

TEST_CASE("A stopped reader can be resumed with a segment without payload") {
  memory_sink sink;
  sink.not_now = 1;
  fpdu_reader reader(true, sink);
  const bytes stream = send_of({});
  CHECK(reader.feed(stream) == 20);
  CHECK(reader.resume() == reader_state::reading);
  CHECK(reader.payload_pending() == 0);
  reader.feed(std::span(stream).subspan(20));
  CHECK(sink.messages.size() == 1);
}

TEST_CASE("The sink may fail a segment, also when it is asked again") {
  const protocol_error no_buffer = ddp_error(ddp_untagged_code::invalid_msn_no_buffer);
  memory_sink sink;
  sink.not_now = 1;
  sink.begin_failure = no_buffer;
  fpdu_reader reader(true, sink);
  reader.feed(send_of(pattern(5, 3)));
  CHECK(reader.state() == reader_state::stopped);
  CHECK(reader.resume() == reader_state::failed);
  CHECK(reader.error() == no_buffer);
  CHECK(reader.feed(bytes(100)) == 0);
  CHECK(reader.resume() == reader_state::failed);
  CHECK(sink.ended.empty());
}

TEST_CASE("The sink may fail the end of a segment") {
  memory_sink sink;
  const auto error = rdmap_error(rdmap_error_type::remote_protection,
                                 rdmap_error_code::stag_cannot_be_invalidated);
  sink.end_failure = error;
  fpdu_reader reader(true, sink);
  bytes stream = send_of(pattern(5, 3));
  const std::size_t one = stream.size();
  append(stream, stream);
  CHECK(reader.feed(stream) == one);
  CHECK(reader.state() == reader_state::failed);
  CHECK(reader.error() == error);
}

TEST_CASE("A discarded payload is consumed and its CRC checked") {
  memory_sink sink;
  sink.discard = true;
  fpdu_reader reader(true, sink);
  bytes stream = send_of(pattern(500, 4));
  CHECK(reader.feed(std::span(stream).first(100)) == 100);
  CHECK(reader.payload_pending() == 420);
  CHECK(reader.targets().empty());
  CHECK(reader.feed(std::span(stream).subspan(100)) == stream.size() - 100);
  CHECK(sink.messages.size() == 1);
  stream[200] ^= std::byte{1};
  memory_sink other;
  other.discard = true;
  fpdu_reader again(true, other);
  again.feed(stream);
  CHECK(again.error() == mpa_error(mpa_error_code::crc));
}

TEST_CASE("Payload can be written directly to the targets") {
  const bytes payload = pattern(1000, 5);
  const bytes stream = send_of(payload, false);
  memory_sink sink;
  sink.part = 70;
  fpdu_reader reader(false, sink);
  random_engine random(6);
  std::size_t at = reader.feed(std::span(stream).first(30));
  while (reader.payload_pending() != 0) {
    const std::size_t pending = reader.payload_pending();
    std::size_t room = 0;
    for (const auto& part : reader.targets())
      room += part.size();
    REQUIRE(room == pending);
    REQUIRE(reader.targets()[0].size() <= 70);
    // As readv would: some bytes, over several parts.
    const std::size_t n = std::min<std::size_t>(pending, number(random, 0, 200));
    std::size_t left = n;
    std::size_t from = at;
    for (const auto& part : reader.targets()) {
      const std::size_t here = std::min(left, part.size());
      std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(from), here, part.begin());
      from += here;
      left -= here;
    }
    reader.placed(n);
    REQUIRE(reader.payload_pending() == pending - n);
    at += n;
    // Some bytes through the other way.
    at += reader.feed(
        std::span(stream).subspan(at, std::min<std::size_t>(reader.payload_pending(), 3)));
  }
  reader.feed(std::span(stream).subspan(at));
  CHECK(reader.state() == reader_state::reading);
  REQUIRE(sink.messages.size() == 1);
  CHECK(sink.messages[0].payload == payload);
}

TEST_CASE("With CRC there are no targets, and the memory may change while bytes arrive") {
  const bytes payload = pattern(200, 5);
  fpdu_writer writer(true);
  const bytes stream = fpdus(
      writer, {.op = opcode::rdma_write, .length = 200, .stag = sink_stag, .tagged_offset = 0},
      payload);
  memory_sink sink;
  fpdu_reader reader(true, sink);
  for (const std::byte b : stream) {
    CHECK(reader.targets().empty());
    reader.feed(std::span(&b, 1));
    std::ranges::fill(sink.tagged, std::byte{7});
  }
  CHECK(reader.state() == reader_state::reading);
  CHECK(sink.ended.size() == 1);
}

TEST_CASE("Memory beyond the payload is not offered") {
  memory_sink sink;
  sink.part = 7;
  fpdu_reader reader(false, sink);
  const bytes stream = send_of(pattern(20, 1), false);
  reader.feed(std::span(stream).first(20));
  REQUIRE(reader.targets().size() == 3);
  CHECK(reader.targets()[2].size() == 6);
}

TEST_CASE("Memory that is too small for a segment is an error") {
  memory_sink sink;
  sink.untagged_size = 49;
  fpdu_reader reader(false, sink);
  reader.feed(send_of(pattern(50, 1), false));
  CHECK(reader.state() == reader_state::failed);
  CHECK(reader.error() == ddp_error(ddp_untagged_code::message_too_long));

  // The parts of a placement are limited, too.
  memory_sink scattered;
  scattered.part = 1;
  fpdu_reader other(false, scattered);
  segment_header h;
  h.op = opcode::rdma_write;
  h.stag = sink_stag;
  other.feed(fpdu(h, pattern(placement::max_parts, 1), false));
  CHECK(other.state() == reader_state::reading);
  other.feed(fpdu(h, pattern(placement::max_parts + 1, 1), false));
  CHECK(other.error() == ddp_error(ddp_tagged_code::base_or_bounds_violation));
}

TEST_CASE("A placement ignores empty parts and refuses more than its maximum") {
  placement p;
  std::byte b{};
  CHECK(p.add({}));
  CHECK(p.parts().empty());
  for (std::size_t i = 0; i != placement::max_parts; ++i)
    CHECK(p.add({&b, 1}));
  CHECK_FALSE(p.add({&b, 1}));
  CHECK(p.size() == placement::max_parts);
}

TEST_CASE("Without CRC, the CRC field and the padding have no meaning") {
  bytes stream = send_of(pattern(5, 1), false);
  for (std::size_t i = stream.size() - 7; i != stream.size(); ++i)
    stream[i] = std::byte{0x5a};
  memory_sink sink;
  fpdu_reader reader(false, sink);
  reader.feed(stream);
  CHECK(sink.messages.size() == 1);
}

TEST_CASE("The rest of a payload is discarded, and its CRC checked") {
  const bytes payload = pattern(200, 1);
  fpdu_writer writer(true);
  const bytes stream = fpdus(
      writer, {.op = opcode::rdma_write, .length = 200, .stag = sink_stag, .tagged_offset = 0},
      payload);
  for (const bool broken : {false, true}) {
    memory_sink sink;
    fpdu_reader reader(true, sink);
    reader.feed(std::span(stream).first(16 + 50));
    reader.discard();
    CHECK(reader.targets().empty());
    CHECK(reader.payload_pending() == 150);
    bytes rest(stream.begin() + 16 + 50, stream.end());
    if (broken)
      rest[10] ^= std::byte{1};
    reader.feed(rest);
    CHECK(std::ranges::equal(std::span(sink.tagged).first(50), std::span(payload).first(50)));
    CHECK(std::ranges::equal(std::span(sink.tagged).subspan(50, 150), bytes(150)));
    CHECK(sink.ended.size() == (broken ? 0 : 1));
    CHECK((reader.state() == reader_state::failed) == broken);
    if (!broken) { // the next segment is placed
      reader.feed(fpdus(
          writer, {.op = opcode::rdma_write, .length = 200, .stag = sink_stag, .tagged_offset = 0},
          payload));
      CHECK(std::ranges::equal(std::span(sink.tagged).first(200), payload));
    }
  }
}

TEST_CASE("With CRC, a change of any bit but those of the length makes the reader fail") {
  const bytes stream = send_of(pattern(13, 1));
  for (std::size_t bit = 16; bit != stream.size() * 8; ++bit) {
    bytes broken = stream;
    broken[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    append(broken, stream); // enough bytes if the header has become longer
    memory_sink sink;
    fpdu_reader reader(true, sink);
    reader.feed(broken);
    REQUIRE(reader.state() == reader_state::failed);
    REQUIRE(sink.messages.empty());
  }
}

TEST_CASE("The stream may end between messages only") {
  const bytes stream = send_of(pattern(200, 1), true, 128);
  const std::size_t first = 20 + 108 + 4;
  for (std::size_t end = 0; end <= stream.size(); ++end) {
    memory_sink sink;
    fpdu_reader reader(true, sink);
    reader.feed(std::span(stream).first(end));
    CHECK(reader.at_boundary() == (end == 0 || end == stream.size()));
    if (end == first)
      CHECK(reader.order().in_message(queue_number::send));
  }
}

TEST_CASE("The bytes of the last FPDU header remain available for a Terminate message") {
  memory_sink sink;
  fpdu_reader reader(true, sink);
  const bytes stream = send_of(pattern(9, 1));
  reader.feed(stream);
  CHECK(to_hex(reader.fpdu_header()) == to_hex(std::span(stream).first(20)));
  CHECK(reader.segment().length == 9);
}
