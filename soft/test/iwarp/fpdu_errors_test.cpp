// SPDX-License-Identifier: BSL-1.0
#include "iwarp/fpdu_reader.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

/// A stream that is fed with segments one at a time.
struct stream {
  memory_sink sink;
  fpdu_reader reader{true, sink};

  failure feed(const segment_header& h, std::size_t size) {
    reader.feed(fpdu(h, pattern(size, 1), true));
    if (reader.state() != reader_state::failed)
      return {};
    return reader.error();
  }
};

segment_header untagged(opcode op, std::uint32_t msn, std::uint32_t offset, bool last) {
  segment_header h;
  h.op = op;
  h.msn = msn;
  h.message_offset = offset;
  h.last = last;
  return h;
}

segment_header tagged(opcode op, std::uint64_t offset, bool last, std::uint32_t stag = sink_stag) {
  segment_header h;
  h.op = op;
  h.tagged_offset = offset;
  h.last = last;
  h.stag = stag;
  return h;
}

protocol_error operation(rdmap_error_code c) {
  return rdmap_error(rdmap_error_type::remote_operation, c);
}

} // namespace

TEST_CASE("A message sequence number that is not the next one of its queue is an error") {
  const protocol_error range = ddp_error(ddp_untagged_code::invalid_msn_range);
  for (const std::uint32_t msn : {0U, 2U, 0xffffffffU}) {
    stream s;
    CHECK(s.feed(untagged(opcode::send, msn, 0, true), 4) == range);
  }
  stream s;
  CHECK_FALSE(s.feed(untagged(opcode::send, 1, 0, true), 4));
  CHECK_FALSE(s.feed(untagged(opcode::send_with_se, 2, 0, true), 4));
  CHECK_FALSE(s.feed(untagged(opcode::immediate_data, 3, 0, true), 8));
  CHECK_FALSE(s.feed(untagged(opcode::rdma_read_request, 1, 0, true), 28));
  CHECK_FALSE(s.feed(untagged(opcode::atomic_request, 2, 0, true), 52));
  CHECK_FALSE(s.feed(untagged(opcode::atomic_response, 1, 0, true), 12));
  CHECK_FALSE(s.feed(untagged(opcode::terminate, 1, 0, true), 4));
  CHECK(s.feed(untagged(opcode::send, 3, 0, true), 4) == range);
}

TEST_CASE("The message sequence number 0 follows the largest one") {
  stream s;
  s.reader.order().set_msn(queue_number::send, 0xffffffff);
  CHECK_FALSE(s.feed(untagged(opcode::send, 0xffffffff, 0, true), 4));
  CHECK_FALSE(s.feed(untagged(opcode::send, 0, 0, true), 4));
  CHECK_FALSE(s.feed(untagged(opcode::send, 1, 0, true), 4));
}

TEST_CASE("A segment of another message of the queue before the last segment is an error") {
  stream s;
  CHECK_FALSE(s.feed(untagged(opcode::send, 1, 0, false), 4));
  CHECK(s.feed(untagged(opcode::send, 2, 0, true), 4) ==
        ddp_error(ddp_untagged_code::invalid_msn_range));
  stream t;
  CHECK_FALSE(t.feed(untagged(opcode::send, 1, 0, false), 4));
  CHECK(t.feed(untagged(opcode::send_with_se, 1, 4, true), 4) ==
        operation(rdmap_error_code::unexpected_opcode));
}

TEST_CASE("A message offset that does not follow the segment before is an error") {
  const protocol_error invalid = ddp_error(ddp_untagged_code::invalid_mo);
  stream first;
  CHECK(first.feed(untagged(opcode::send, 1, 4, true), 4) == invalid);
  for (const std::uint32_t offset : {0U, 3U, 5U, 0xffffffffU}) {
    stream s;
    CHECK_FALSE(s.feed(untagged(opcode::send, 1, 0, false), 4));
    CHECK(s.feed(untagged(opcode::send, 1, offset, true), 4) == invalid);
  }
}

TEST_CASE("Messages of different queues may be interleaved") {
  stream s;
  CHECK_FALSE(s.feed(untagged(opcode::send, 1, 0, false), 4));
  CHECK_FALSE(s.feed(tagged(opcode::rdma_write, 0, false), 4));
  CHECK_FALSE(s.feed(tagged(opcode::rdma_read_response, 100, false), 4));
  CHECK_FALSE(s.feed(untagged(opcode::rdma_read_request, 1, 0, true), 28));
  CHECK_FALSE(s.feed(untagged(opcode::send, 1, 4, true), 4));
  CHECK_FALSE(s.feed(tagged(opcode::rdma_write, 4, true), 4));
  CHECK_FALSE(s.feed(tagged(opcode::rdma_read_response, 104, true), 4));
  CHECK(s.sink.messages.size() == 4);
  CHECK(s.reader.at_boundary());
}

TEST_CASE("Messages of a fixed size are checked in full") {
  struct row {
    opcode op;
    std::size_t least, most;
  };
  const row rows[] = {
      {opcode::rdma_read_request, 28, 28},    {opcode::immediate_data, 8, 8},
      {opcode::immediate_data_with_se, 8, 8}, {opcode::atomic_request, 52, 52},
      {opcode::atomic_response, 12, 12},      {opcode::terminate, 4, max_terminate_size}};
  for (const row& r : rows) {
    CAPTURE(static_cast<int>(r.op));
    for (const std::size_t size : {r.least, r.most}) {
      stream s;
      CHECK_FALSE(s.feed(untagged(r.op, 1, 0, true), size));
    }
    stream shorter;
    CHECK(shorter.feed(untagged(r.op, 1, 0, true), r.least - 1) ==
          operation(rdmap_error_code::catastrophic_stream));
    stream longer;
    CHECK(longer.feed(untagged(r.op, 1, 0, true), r.most + 1) ==
          ddp_error(ddp_untagged_code::message_too_long));
    stream longer_in_parts;
    CHECK_FALSE(longer_in_parts.feed(untagged(r.op, 1, 0, false), r.most));
    CHECK(longer_in_parts.feed(untagged(r.op, 1, static_cast<std::uint32_t>(r.most), true), 1) ==
          ddp_error(ddp_untagged_code::message_too_long));
    stream in_parts;
    CHECK_FALSE(in_parts.feed(untagged(r.op, 1, 0, false), 3));
    CHECK_FALSE(in_parts.feed(untagged(r.op, 1, 3, true), r.least - 3));
  }
}

TEST_CASE("A tagged offset that wraps is an error, and the last byte of the range is not") {
  segment_order order;
  segment_header h = tagged(opcode::rdma_write, 0xffffffffffffffff, true);
  h.length = 1;
  CHECK_FALSE(order.accept(h));
  h.length = 2;
  CHECK(order.accept(h) == ddp_error(ddp_tagged_code::to_wrap));
  // In two segments.
  h.length = 1;
  h.last = false;
  segment_order other;
  CHECK_FALSE(other.accept(h));
  h.tagged_offset = 0;
  CHECK(other.accept(h) == ddp_error(ddp_tagged_code::to_wrap));
}

TEST_CASE("STag and offset of a tagged segment without payload are not checked") {
  stream s;
  CHECK_FALSE(s.feed(tagged(opcode::rdma_write, 0xffffffffffffffff, true, 99), 0));
  CHECK_FALSE(s.feed(tagged(opcode::rdma_write, 0, false), 4));
  CHECK_FALSE(s.feed(tagged(opcode::rdma_write, 77, true, 99), 0));
  CHECK(s.sink.messages.size() == 2);
}

TEST_CASE("A tagged message keeps its STag and has no gaps") {
  for (const opcode op : {opcode::rdma_write, opcode::rdma_read_response}) {
    stream s;
    CHECK_FALSE(s.feed(tagged(op, 8, false), 4));
    CHECK(s.feed(tagged(op, 12, true, sink_stag + 1), 4) ==
          ddp_error(ddp_tagged_code::invalid_stag));
    CHECK(s.sink.begun.size() == 1); // the sink was not asked
    for (const std::uint64_t offset : {8U, 11U, 13U}) {
      stream t;
      CHECK_FALSE(t.feed(tagged(op, 8, false), 4));
      CHECK(t.feed(tagged(op, offset, true), 4) ==
            ddp_error(ddp_tagged_code::base_or_bounds_violation));
    }
    stream next;
    CHECK_FALSE(next.feed(tagged(op, 8, true), 4));
    CHECK_FALSE(next.feed(tagged(op, 100, true), 4));
  }
}

TEST_CASE("A message of more than 2^32 - 1 bytes is an error") {
  const auto fill = [](segment_order& order, segment_header h) {
    // 65537 segments of 65535 bytes are 2^32 - 1 bytes.
    h.last = false;
    h.length = 65535;
    for (std::uint64_t i = 0; i != 65537; ++i) {
      h.message_offset = static_cast<std::uint32_t>(i * 65535);
      h.tagged_offset = i * 65535;
      if (order.accept(h))
        return false;
    }
    return true;
  };
  segment_order order;
  segment_header send = untagged(opcode::send, 1, 0xffffffff, true);
  segment_header write = tagged(opcode::rdma_write, 0xffffffff, true);
  REQUIRE(fill(order, send));
  REQUIRE(fill(order, write));
  segment_order copy = order;
  send.length = 0;
  CHECK_FALSE(copy.accept(send));
  write.length = 0;
  CHECK_FALSE(copy.accept(write));
  send.length = 1;
  send.message_offset = 0xffffffff;
  CHECK(order.accept(send) == ddp_error(ddp_untagged_code::message_too_long));
  write.length = 1;
  CHECK(order.accept(write) == ddp_error(ddp_tagged_code::base_or_bounds_violation));
}

TEST_CASE("The errors of a header stop the reader at once") {
  struct row {
    const char* ulpdu;
    protocol_error error;
  };
  const row rows[] = {
      {"4043 00000000 00000000 00000001 00000000",
       ddp_error(ddp_untagged_code::invalid_ddp_version)},
      {"c340 00001234 0000000000000000", ddp_error(ddp_tagged_code::invalid_ddp_version)},
      {"4103 00000000 00000000 00000001 00000000",
       operation(rdmap_error_code::invalid_rdmap_version)},
      {"414e 00000000 00000000 00000001 00000000", operation(rdmap_error_code::unexpected_opcode)},
      {"4143 00000000 00000005 00000001 00000000", ddp_error(ddp_untagged_code::invalid_qn)},
      {"4143 00000000 00000003 00000001 00000000", operation(rdmap_error_code::unexpected_opcode)},
      {"4143 00000000 00000000 00000001", mpa_error(mpa_error_code::marker_and_length_mismatch)},
      {"", mpa_error(mpa_error_code::marker_and_length_mismatch)},
  };
  for (const row& r : rows) {
    CAPTURE(r.ulpdu);
    memory_sink sink;
    fpdu_reader reader(true, sink);
    const bytes sent = fpdu(hex(r.ulpdu), true);
    CHECK(reader.feed(sent) <= sent.size());
    REQUIRE(reader.state() == reader_state::failed);
    CHECK(reader.error() == r.error);
    CHECK(sink.begun.empty());
    CHECK(reader.feed(sent) == 0);
  }
}

TEST_CASE("A wrong CRC is an MPA error and the segment does not end") {
  stream s;
  bytes sent = fpdu(untagged(opcode::send, 1, 0, true), pattern(9, 1), true);
  sent.back() ^= std::byte{1};
  s.reader.feed(sent);
  REQUIRE(s.reader.state() == reader_state::failed);
  CHECK(s.reader.error() == mpa_error(mpa_error_code::crc));
  CHECK(s.sink.begun.size() == 1);
  CHECK(s.sink.ended.empty());
}
