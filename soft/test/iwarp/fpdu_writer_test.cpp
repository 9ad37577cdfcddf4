// SPDX-License-Identifier: BSL-1.0
#include "iwarp/fpdu_writer.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

TEST_CASE("A send of 5 bytes is an FPDU with 3 bytes of padding and a zero CRC field") {
  fpdu_writer writer(false);
  const bytes payload = hex("a1a2a3a4a5");
  CHECK(to_hex(fpdus(writer, {.op = opcode::send, .length = 5}, payload)) ==
        to_hex(hex("0017 4143 00000000 00000000 00000001 00000000 a1a2a3a4a5 000000 00000000")));
}

TEST_CASE("The CRC of an FPDU covers length, header, payload and padding") {
  fpdu_writer writer(true);
  const bytes payload = hex("a1a2a3a4a5");
  const bytes sent = fpdus(writer, {.op = opcode::send, .length = 5}, payload);
  REQUIRE(sent.size() == 32);
  crc32c crc;
  crc.update(hex("0017 4143 00000000 00000000 00000001 00000000 a1a2a3a4a5 000000"));
  CHECK(crc.matches(sent.data() + 28));
}

TEST_CASE("Padding completes an FPDU to a multiple of 4 bytes") {
  for (std::uint32_t length = 0; length != 9; ++length)
    for (const opcode op : {opcode::send, opcode::rdma_write}) {
      fpdu_writer writer(false);
      outgoing_segment s;
      REQUIRE(writer.start({.op = op, .length = length}));
      REQUIRE(writer.next(s));
      CHECK(s.size() % 4 == 0);
      CHECK(s.trailer().size() < 8);
      CHECK(s.header().size() % 4 == 0);
    }
}

TEST_CASE("A message is cut into segments of at most the ULPDU size, without gaps") {
  random_engine random(7);
  for (int round = 0; round != 200; ++round) {
    const std::size_t ulpdu = number(random, 128, 2000);
    const auto length = static_cast<std::uint32_t>(number(random, 0, 5000));
    const bool tagged = random() % 2 != 0;
    fpdu_writer writer(false, ulpdu);
    REQUIRE(writer.start({.op = tagged ? opcode::rdma_write : opcode::send,
                          .length = length,
                          .stag = 3,
                          .tagged_offset = 1000}));
    std::uint32_t at = 0;
    outgoing_segment s;
    while (writer.next(s)) {
      segment_header h;
      REQUIRE_FALSE(decode(s.header(), h));
      REQUIRE(s.offset == at);
      REQUIRE(h.length == s.length);
      REQUIRE(ddp_header_size(h.op) + s.length <= ulpdu);
      REQUIRE(h.last == s.last);
      REQUIRE(s.last == (at + s.length == length));
      REQUIRE((s.last || (s.length % 4 == 0 && s.length + 22 > ulpdu - 4)));
      REQUIRE((tagged ? h.tagged_offset == 1000 + at : h.message_offset == at));
      at += s.length;
    }
    CHECK(at == length);
    CHECK(writer.idle());
  }
}

TEST_CASE("A message without payload is one last segment") {
  fpdu_writer writer(false);
  outgoing_segment s;
  REQUIRE(writer.start({.op = opcode::rdma_write, .stag = 1}));
  REQUIRE(writer.next(s));
  CHECK(s.last);
  CHECK(s.length == 0);
  CHECK(to_hex(s.header()) == to_hex(hex("000e c140 00000001 0000000000000000")));
  CHECK_FALSE(writer.next(s));
}

TEST_CASE("Each queue numbers its messages from 1, and 0 follows the largest number") {
  fpdu_writer writer(false);
  const auto send = [&](opcode op) {
    fpdus(writer, {.op = op, .length = traits(op).least}, bytes(traits(op).least));
  };
  send(opcode::send);
  send(opcode::send_with_se);
  send(opcode::immediate_data);
  send(opcode::rdma_read_request);
  send(opcode::atomic_request);
  send(opcode::atomic_response);
  send(opcode::rdma_write);
  CHECK(writer.msn(queue_number::send) == 4);
  CHECK(writer.msn(queue_number::read_request) == 3);
  CHECK(writer.msn(queue_number::terminate) == 1);
  CHECK(writer.msn(queue_number::atomic_response) == 2);
  writer.set_msn(queue_number::send, 0xffffffff);
  send(opcode::send);
  CHECK(writer.msn(queue_number::send) == 0);
}

TEST_CASE("A message of a wrong size for its opcode, or within another message, is refused") {
  fpdu_writer writer(false, 128);
  CHECK_FALSE(writer.start({.op = opcode::rdma_read_request, .length = 27}));
  CHECK_FALSE(writer.start({.op = opcode::rdma_read_request, .length = 29}));
  CHECK_FALSE(writer.start({.op = opcode::immediate_data, .length = 4}));
  CHECK_FALSE(writer.start({.op = opcode::terminate, .length = 3}));
  CHECK(writer.msn(queue_number::read_request) == 1);
  REQUIRE(writer.start({.op = opcode::send, .length = 1000}));
  CHECK_FALSE(writer.start({.op = opcode::send, .length = 1}));
  outgoing_segment s;
  REQUIRE(writer.next(s));
  CHECK_FALSE(writer.start({.op = opcode::send, .length = 1}));
  writer.abandon();
  CHECK(writer.start({.op = opcode::terminate, .length = 4}));
}

TEST_CASE("The ULPDU size is kept between 128 and 64768 bytes and may change within a message") {
  fpdu_writer writer(false, 1);
  outgoing_segment s;
  REQUIRE(writer.start({.op = opcode::send, .length = 200000}));
  REQUIRE(writer.next(s));
  CHECK(s.length == 108);
  writer.set_max_ulpdu(1000000);
  REQUIRE(writer.next(s));
  CHECK(s.offset == 108);
  CHECK(s.length == 64748); // 64750 bytes are no multiple of 4
}

TEST_CASE("An FPDU of the largest ULPDU fills a TCP segment, to a multiple of 4 bytes") {
  for (std::size_t segment = 160; segment != 70000; ++segment) {
    const std::size_t ulpdu = largest_ulpdu_of(segment);
    REQUIRE(ulpdu == segment - 6 - segment % 4);
    REQUIRE((ulpdu + 6) % 4 == 0);
  }
  CHECK(largest_ulpdu_of(1448) == 1442);
  CHECK(largest_ulpdu_of(1460) == 1454);
  for (std::size_t segment = 0; segment != 6; ++segment)
    CHECK(largest_ulpdu_of(segment) == 0);

  // The writer fills it.
  fpdu_writer writer(false, largest_ulpdu_of(1449));
  outgoing_segment s;
  REQUIRE(writer.start({.op = opcode::rdma_write, .length = 5000}));
  REQUIRE(writer.next(s));
  CHECK(s.size() == 1448);
}

TEST_CASE("A message may have 2^32 - 1 bytes") {
  fpdu_writer writer(false);
  REQUIRE(writer.start({.op = opcode::send, .length = max_message_size}));
  outgoing_segment s;
  std::uint64_t total = 0;
  while (writer.next(s))
    total += s.length;
  CHECK(total == max_message_size);
}
