// SPDX-License-Identifier: BSL-1.0
#include "iwarp/ddp.hpp"
#include "iwarp/rdmap_payload.hpp"

#include "streams.hpp"

#include <catch2/catch.hpp>

using namespace soft::iwarp;
using namespace soft::iwarp::test;

namespace {

std::string encoded(const segment_header& h) {
  std::array<std::byte, max_fpdu_header> to{};
  const std::size_t size = encode(h, to);
  return to_hex(std::span(to).first(size));
}

segment_header decoded(std::string_view text) {
  const bytes b = hex(text);
  std::size_t size = 0;
  REQUIRE_FALSE(check_control(std::span(b).first<fpdu_control_size>(), size));
  REQUIRE(size == b.size());
  segment_header h;
  REQUIRE_FALSE(decode(b, h));
  return h;
}

void check_both(const segment_header& h, std::string_view text) {
  CHECK(encoded(h) == to_hex(hex(text)));
  CHECK(decoded(text) == h);
}

constexpr std::string_view msn_and_offset = "01020304 00000100";

} // namespace

TEST_CASE("An RDMA write has the tagged header of RFC 5041, figure 4") {
  segment_header h;
  h.op = opcode::rdma_write;
  h.last = false;
  h.stag = 0xa1a2a3a4;
  h.tagged_offset = 0xb1b2b3b4b5b6b7b8;
  h.length = 0x1000;
  //              length T,DV  RV,op  STag      TO
  check_both(h, "100e   81    40     a1a2a3a4  b1b2b3b4b5b6b7b8");
  h.last = true;
  h.length = 0;
  check_both(h, "000e   c1    40     a1a2a3a4  b1b2b3b4b5b6b7b8");
}

TEST_CASE("An RDMA read response has a tagged header with opcode 2") {
  segment_header h;
  h.op = opcode::rdma_read_response;
  h.stag = 5;
  h.tagged_offset = 6;
  h.length = 1;
  check_both(h, "000f c1 42 00000005 0000000000000006");
}

TEST_CASE("Untagged messages have the header of RFC 5041, figure 5, with their opcode and queue") {
  struct row {
    opcode op;
    const char* control;
    const char* queue;
    std::uint32_t length;
    const char* ulpdu;
  };
  const row rows[] = {
      {opcode::rdma_read_request, "4141", "00000001", 28, "002e"},
      {opcode::send, "4143", "00000000", 0, "0012"},
      {opcode::send_with_se, "4145", "00000000", 2, "0014"},
      {opcode::terminate, "4147", "00000002", 4, "0016"},
      {opcode::immediate_data, "4148", "00000000", 8, "001a"},
      {opcode::immediate_data_with_se, "4149", "00000000", 8, "001a"},
      {opcode::atomic_request, "414a", "00000001", 52, "0046"},
      {opcode::atomic_response, "414b", "00000003", 12, "001e"},
  };
  for (const row& r : rows) {
    CAPTURE(r.control);
    segment_header h;
    h.op = r.op;
    h.msn = 0x01020304;
    h.message_offset = 0x100;
    h.length = r.length;
    check_both(h, std::string(r.ulpdu) + r.control + "00000000" + r.queue +
                      std::string(msn_and_offset));
  }
}

TEST_CASE("Sends with invalidate carry the STag in the reserved field, RFC 5040, section 4.1") {
  segment_header h;
  h.op = opcode::send_with_invalidate;
  h.stag = 0xdeadbeef;
  h.msn = 0x01020304;
  h.message_offset = 0x100;
  h.length = 1;
  check_both(h, "0013 4144 deadbeef 00000000" + std::string(msn_and_offset));
  h.op = opcode::send_with_se_and_invalidate;
  check_both(h, "0013 4146 deadbeef 00000000" + std::string(msn_and_offset));
}

TEST_CASE("The reserved STag of a send is written as zero and ignored when received") {
  segment_header h;
  h.stag = 7;
  h.msn = 1;
  CHECK(encoded(h) == to_hex(hex("0012 4143 00000000 00000000 00000001 00000000")));
  h.stag = 0;
  CHECK(decoded("0012 4143 ffffffff 00000000 00000001 00000000") == h);
}

TEST_CASE("Reserved bits of the DDP and RDMAP control fields are ignored") {
  segment_header h;
  h.msn = 1;
  CHECK(decoded("0012 7d73 00000000 00000000 00000001 00000000") == h);
}

TEST_CASE("Each invalid field of a header gives its error") {
  const auto error_of = [](std::string_view text) -> failure {
    const bytes b = hex(text);
    std::size_t size = 0;
    if (const failure f = check_control(std::span(b).first<fpdu_control_size>(), size))
      return f;
    segment_header h;
    return decode(b, h);
  };
  const std::string rest = "00000000 00000000 00000001 00000000";
  const auto operation = [](rdmap_error_code c) {
    return rdmap_error(rdmap_error_type::remote_operation, c);
  };
  CHECK(error_of("0012 4143" + rest) == failure());
  CHECK(error_of("0012 4043" + rest) == ddp_error(ddp_untagged_code::invalid_ddp_version));
  CHECK(error_of("0012 4243" + rest) == ddp_error(ddp_untagged_code::invalid_ddp_version));
  CHECK(error_of("000e c240" + rest) == ddp_error(ddp_tagged_code::invalid_ddp_version));
  CHECK(error_of("0012 4103" + rest) == operation(rdmap_error_code::invalid_rdmap_version));
  CHECK(error_of("0012 4183" + rest) == operation(rdmap_error_code::invalid_rdmap_version));
  for (const char* op : {"414e", "414f"})
    CHECK(error_of("0012" + (op + rest)) == operation(rdmap_error_code::unexpected_opcode));
  // The tagged flag and the opcode contradict each other.
  CHECK(error_of("0012 c143" + rest) == operation(rdmap_error_code::unexpected_opcode));
  CHECK(error_of("0012 4140" + rest) == operation(rdmap_error_code::unexpected_opcode));
  CHECK(error_of("0012 4142" + rest) == operation(rdmap_error_code::unexpected_opcode));
  // The queue: none, and that of another opcode.
  CHECK(error_of("0012 4143 00000000 00000004 00000001 00000000") ==
        ddp_error(ddp_untagged_code::invalid_qn));
  CHECK(error_of("0012 4143 00000000 80000000 00000001 00000000") ==
        ddp_error(ddp_untagged_code::invalid_qn));
  CHECK(error_of("0012 4143 00000000 00000001 00000001 00000000") ==
        operation(rdmap_error_code::unexpected_opcode));
  CHECK(error_of("002e 4141 00000000 00000000 00000001 00000000") ==
        operation(rdmap_error_code::unexpected_opcode));
  // The length: less than the header.
  CHECK(error_of("0000 0000" + rest) == mpa_error(mpa_error_code::marker_and_length_mismatch));
  CHECK(error_of("0011 4143" + rest) == mpa_error(mpa_error_code::marker_and_length_mismatch));
  CHECK(error_of("000d c140" + rest) == mpa_error(mpa_error_code::marker_and_length_mismatch));
}

TEST_CASE("A read request has the layout of RFC 5040, section 4.4") {
  const read_request r{0x11121314, 0x2122232425262728, 0x31323334, 0x41424344, 0x5152535455565758};
  const auto b = encode(r);
  CHECK(to_hex(b) == to_hex(hex("11121314 2122232425262728 31323334 41424344 5152535455565758")));
  read_request back;
  decode(b, back);
  CHECK(back == r);
}

TEST_CASE("An atomic request has the layout of RFC 7306, section 5.2.1") {
  atomic_request r;
  r.op = atomic_opcode::compare_swap;
  r.request_id = 0x11121314;
  r.stag = 0x21222324;
  r.offset = 0x3132333435363738;
  r.add_or_swap = 0x4142434445464748;
  r.add_or_swap_mask = 0x5152535455565758;
  r.compare = 0x6162636465666768;
  r.compare_mask = 0x7172737475767778;
  auto b = encode(r);
  CHECK(to_hex(b) == to_hex(hex("00000002 11121314 21222324 3132333435363738 4142434445464748"
                                "5152535455565758 6162636465666768 7172737475767778")));
  atomic_request back;
  REQUIRE_FALSE(decode(b, back));
  CHECK(back == r);
  b[0] = std::byte{0xff}; // reserved
  REQUIRE_FALSE(decode(b, back));
  CHECK(back == r);
  r.op = atomic_opcode::fetch_add;
  REQUIRE_FALSE(decode(encode(r), back));
  CHECK(back == r);
}

TEST_CASE("An unassigned atomic operation is an unexpected opcode") {
  auto b = encode(atomic_request());
  atomic_request back;
  for (unsigned op = 0; op != 16; ++op) {
    b[3] = static_cast<std::byte>(op);
    CHECK(decode(b, back).has_value() == (op != 0 && op != 2));
  }
  CHECK(decode(b, back) ==
        rdmap_error(rdmap_error_type::remote_operation, rdmap_error_code::unexpected_opcode));
}

TEST_CASE("An atomic response and immediate data have the layouts of RFC 7306") {
  const atomic_response r{0x11121314, 0x2122232425262728};
  CHECK(to_hex(encode(r)) == to_hex(hex("11121314 2122232425262728")));
  atomic_response r_back;
  decode(encode(r), r_back);
  CHECK(r_back == r);
  const immediate_data i{0x0102030405060708};
  CHECK(to_hex(encode(i)) == "0102030405060708");
  immediate_data i_back;
  decode(encode(i), i_back);
  CHECK(i_back == i);
}

TEST_CASE("A fetch and add adds the fields of its mask separately") {
  // Bit by bit, with a carry that does not leave a field.
  const auto slow = [](std::uint64_t a, std::uint64_t b, std::uint64_t mask) {
    std::uint64_t sum = 0;
    unsigned carry = 0;
    for (unsigned bit = 0; bit != 64; ++bit) {
      const unsigned total = carry + unsigned(a >> bit & 1) + unsigned(b >> bit & 1);
      sum |= std::uint64_t(total & 1) << bit;
      carry = (mask >> bit & 1) != 0 ? 0 : total >> 1;
    }
    return sum;
  };
  atomic_request r;
  r.add_or_swap = 2;
  CHECK(result_of(r, 0xffffffffffffffff) == 1);
  random_engine random(4);
  for (int round = 0; round != 200; ++round) {
    r.add_or_swap = random();
    r.add_or_swap_mask = round % 3 == 0 ? 0 : random() & random();
    const std::uint64_t original = random();
    REQUIRE(result_of(r, original) == slow(original, r.add_or_swap, r.add_or_swap_mask));
  }
}

TEST_CASE("A compare and swap compares and replaces the bits of its masks only") {
  atomic_request r;
  r.op = atomic_opcode::compare_swap;
  r.compare = 0x1100;
  r.compare_mask = 0xff00;
  r.add_or_swap = 0xaaaa;
  r.add_or_swap_mask = 0x00ff;
  CHECK(result_of(r, 0x1122) == 0x11aa);
  CHECK(result_of(r, 0x1222) == 0x1222);
  r.compare_mask = ~std::uint64_t(0);
  r.add_or_swap_mask = ~std::uint64_t(0);
  CHECK(result_of(r, 0x1100) == 0xaaaa);
  CHECK(result_of(r, 0x1101) == 0x1101);
}

TEST_CASE("Each error code has a text, and unassigned ones say so") {
  for (unsigned layer = 0; layer != 3; ++layer)
    for (unsigned type = 0; type != 3; ++type)
      for (unsigned code = 0; code != 256; ++code) {
        const protocol_error e{static_cast<error_layer>(layer), static_cast<std::uint8_t>(type),
                               static_cast<std::uint8_t>(code)};
        REQUIRE(std::string_view(describe(e)).size() > 5);
      }
  CHECK(std::string_view(describe(mpa_error(mpa_error_code::crc))) == "MPA: CRC error");
  CHECK(std::string_view(describe({error_layer::llp, 0, 99})) == "MPA: unassigned error code");
  CHECK(std::string_view(describe({static_cast<error_layer>(9), 0, 0})) ==
        "unassigned error layer");
}
