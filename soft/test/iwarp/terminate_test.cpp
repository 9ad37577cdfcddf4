// SPDX-License-Identifier: BSL-1.0
#include "iwarp/rdmap_payload.hpp"
#include "iwarp/terminate.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

const bytes send_header = hex("0017 4143 00000000 00000000 00000001 00000000");
const bytes write_header = hex("0056 c140 00001234 0000000000000010");
const bytes read_header = hex("002e 4141 00000000 00000001 00000007 00000000");
const bytes read_payload = hex("11121314 2122232425262728 31323334 41424344 5152535455565758");

constexpr protocol_error protection =
    rdmap_error(rdmap_error_type::remote_protection, rdmap_error_code::access_rights_violation);

} // namespace

TEST_CASE("A Terminate for an error of the LLP, or a local one, quotes no header") {
  for (const protocol_error& e :
       {mpa_error(mpa_error_code::crc),
        rdmap_error(rdmap_error_type::local_catastrophic, rdmap_error_code::invalid_stag),
        protocol_error{error_layer::ddp, 0, 0}}) {
    const terminate t(e, send_header);
    CHECK(t.bytes().size() == 4);
    CHECK(t.bytes()[2] == std::byte{0});
    CHECK(t.ddp_header().empty());
    CHECK_FALSE(t.segment_length());
  }
  CHECK(to_hex(terminate(mpa_error(mpa_error_code::crc)).bytes()) == "20020000");
}

TEST_CASE("A Terminate for an invalid DDP version quotes no header") {
  CHECK(to_hex(terminate(ddp_error(ddp_untagged_code::invalid_ddp_version), send_header).bytes()) ==
        "12060000");
  CHECK(to_hex(terminate(ddp_error(ddp_tagged_code::invalid_ddp_version), write_header).bytes()) ==
        "11040000");
}

TEST_CASE("A Terminate for an untagged segment quotes its length and 18 bytes of header") {
  const terminate t(ddp_error(ddp_untagged_code::invalid_msn_no_buffer), send_header);
  CHECK(to_hex(t.bytes()) ==
        to_hex(hex("1202 c000 0017 4143 00000000 00000000 00000001 00000000")));
  CHECK(t.segment_length() == 0x17);
  CHECK(t.ddp_header().size() == untagged_header_size);
  CHECK(t.rdma_header().empty());
}

TEST_CASE("A Terminate for a tagged segment quotes its length and 14 bytes of header") {
  const terminate t(ddp_error(ddp_tagged_code::base_or_bounds_violation), write_header);
  CHECK(to_hex(t.bytes()) == to_hex(hex("1101 c000 0056 c140 00001234 0000000000000010")));
  CHECK(t.ddp_header().size() == tagged_header_size);
}

TEST_CASE("A Terminate for a read request quotes length, DDP header and read request") {
  const terminate t(protection, read_header, read_payload);
  bytes expected = hex("0102 e000");
  append(expected, read_header);
  append(expected, read_payload);
  CHECK(to_hex(t.bytes()) == to_hex(expected));
  CHECK(t.bytes().size() == 52);
  read_request r;
  decode(t.rdma_header().first<read_request::size>(), r);
  CHECK(r.sink_stag == 0x11121314);
}

TEST_CASE("A Terminate quotes a read request only of a read request") {
  CHECK(terminate(protection, send_header, read_payload).rdma_header().empty());
  CHECK(
      terminate(protection, read_header, std::span(read_payload).first(27)).rdma_header().empty());
  CHECK(terminate(protection, read_header).bytes().size() == 24);
}

TEST_CASE("A Terminate quotes a read request only for an error of remote protection") {
  for (const protocol_error& e :
       {rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::catastrophic_stream),
        ddp_error(ddp_untagged_code::invalid_mo)}) {
    const terminate t(e, read_header, read_payload);
    CHECK(t.bytes().size() == 24);
    CHECK(t.bytes()[2] == std::byte{0xc0});
    CHECK(t.rdma_header().empty());
  }
}

TEST_CASE("A Terminate quotes nothing of an incomplete header") {
  for (std::size_t size = 0; size != send_header.size(); ++size)
    CHECK(terminate(protection, std::span(send_header).first(size)).bytes().size() == 4);
}

TEST_CASE("A received Terminate has the error and the headers of the sent one") {
  const terminate sent[] = {
      terminate(mpa_error(mpa_error_code::no_matching_rtr)),
      terminate(ddp_error(ddp_untagged_code::invalid_qn), send_header),
      terminate(ddp_error(ddp_tagged_code::to_wrap), write_header),
      terminate(protection, read_header, read_payload),
  };
  for (const terminate& t : sent) {
    const auto received = terminate::decode(t.bytes());
    REQUIRE(received);
    CHECK(received->error() == t.error());
    CHECK(received->segment_length() == t.segment_length());
    CHECK(to_hex(received->ddp_header()) == to_hex(t.ddp_header()));
    CHECK(to_hex(received->rdma_header()) == to_hex(t.rdma_header()));
    CHECK(to_hex(received->bytes()) == to_hex(t.bytes()));
  }
}

TEST_CASE("A received Terminate without its whole headers still has its error") {
  const terminate t(protection, read_header, read_payload);
  for (std::size_t size = 0; size != t.bytes().size(); ++size) {
    const auto received = terminate::decode(t.bytes().first(size));
    REQUIRE(received.has_value() == (size >= 4));
    if (!received)
      continue;
    CHECK(received->error() == protection);
    CHECK(received->segment_length().has_value() == (size >= 6));
    CHECK(received->ddp_header().size() == (size >= 24 ? 18 : 0));
    CHECK(received->rdma_header().empty());
  }
}

TEST_CASE("The reserved bits of a received Terminate are ignored") {
  const terminate t(protection, send_header);
  bytes text(t.bytes().begin(), t.bytes().end());
  text[2] |= std::byte{0x1f};
  text[3] = std::byte{0xff};
  const auto received = terminate::decode(text);
  REQUIRE(received);
  CHECK(received->error() == protection);
  CHECK(received->ddp_header().size() == 18);
}

TEST_CASE("A Terminate of siw on a little-endian host is recognized by its flags") {
  // struct iwarp_terminate: layer and type exchanged, the flags M and D in the lowest bits.
  const auto received =
      terminate::decode(hex("2103 0300 0017 4143 00000000 00000000 00000001 00000000"));
  REQUIRE(received);
  CHECK(received->error() == ddp_error(ddp_untagged_code::invalid_msn_range));
  CHECK(received->segment_length() == 0x17);
  CHECK(received->ddp_header().size() == 18);
}

TEST_CASE("A Terminate travels as a message of queue 2") {
  const terminate t(protection, read_header, read_payload);
  fpdu_writer writer(true);
  memory_sink sink;
  fpdu_reader reader(true, sink);
  reader.feed(fpdus(
      writer, {.op = opcode::terminate, .length = static_cast<std::uint32_t>(t.bytes().size())},
      t.bytes()));
  REQUIRE(sink.messages.size() == 1);
  CHECK(sink.messages[0].op == opcode::terminate);
  CHECK(to_hex(sink.messages[0].payload) == to_hex(t.bytes()));
}
