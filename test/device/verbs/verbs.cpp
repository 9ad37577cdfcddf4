// SPDX-License-Identifier: BSL-1.0
// The effect of each kind of operation.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <string>
#include <vector>

namespace test::verbs_tests {

TEST_CASE("send and receive") {
  pair p;
  sent s;
  got r;
  p.ma.put(0, "hello");
  p.b.async_receive(p.mb.buffer(100, 50), r.handler());
  p.a.async_send(p.ma.buffer(0, 5), s.handler());
  CHECK(s.calls == 0);
  p.drain();
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(s.value == 5);
  CHECK(r.value.bytes == 5);
  CHECK_FALSE(r.value.immediate);
  CHECK_FALSE(r.value.invalidated_key);
  CHECK_FALSE(r.value.written);
  CHECK(r.value.queue_pair_number == p.b.native_handle()->qp_num);
  CHECK(p.mb.text(100, 6) == std::string("hello\0", 6));
}

TEST_CASE("messages are sent both ways at once") {
  pair p;
  sent of_a, of_b;
  got at_a, at_b;
  p.ma.put(0, "from a");
  p.mb.put(0, "from b!");
  p.a.async_receive(p.ma.buffer(100, 100), at_a.handler());
  p.b.async_receive(p.mb.buffer(100, 100), at_b.handler());
  p.a.async_send(p.ma.buffer(0, 6), of_a.handler());
  p.b.async_send(p.mb.buffer(0, 7), of_b.handler());
  p.drain();
  CHECK(of_a.succeeded());
  CHECK(of_b.succeeded());
  CHECK(at_a.value.bytes == 7);
  CHECK(at_b.value.bytes == 6);
  CHECK(p.ma.text(100, 7) == "from b!");
  CHECK(p.mb.text(100, 6) == "from a");
}

TEST_CASE("immediate data of a send") {
  pair p;
  sent s;
  if (!p.dev.has_immediate()) {
    p.a.async_send_immediate(p.ma.buffer(0, 4), 1, s.handler());
    p.drain();
    CHECK(s.ec == asio::error::operation_not_supported);
    CHECK(p.carries("still connected"));
    return;
  }
  got r;
  p.ma.put(0, "data");
  p.b.async_receive(p.mb.buffer(0, 100), r.handler());
  p.a.async_send_immediate(p.ma.buffer(0, 4), 0x01020304, s.handler());
  p.drain();
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(s.value == 4);
  CHECK(r.value.bytes == 4);
  CHECK(r.value.immediate == 0x01020304u);
  CHECK(p.mb.text(0, 4) == "data");

  got bare;
  p.b.async_receive(p.mb.buffer(0, 100), bare.handler());
  p.a.async_send_immediate(p.ma.buffer(0, 0), 0, queue_pair::flags::solicited, s.handler());
  p.drain();
  REQUIRE(bare.succeeded());
  CHECK(bare.value.bytes == 0);
  CHECK(bare.value.immediate == 0u);
}

TEST_CASE("write, which the peer does not notice") {
  pair p;
  sent s;
  p.ma.put(10, "written");
  p.a.async_write(p.ma.buffer(10, 7), p.mb.remote(1000, 7), s.handler());
  p.drain();
  REQUIRE(s.succeeded());
  CHECK(s.value == 7);
  CHECK(p.placed());
  CHECK(p.mb.text(999, 9) == std::string("\0written\0", 9));
}

TEST_CASE("write with immediate data completes a receive") {
  pair p;
  sent s;
  if (!p.dev.has_immediate()) {
    p.a.async_write_immediate(p.ma.buffer(0, 4), p.mb.remote(), 1, s.handler());
    p.drain();
    CHECK(s.ec == asio::error::operation_not_supported);
    CHECK(p.carries("still connected"));
    return;
  }
  got r;
  p.ma.put(0, "payload");
  p.mb.put(0, "untouched");
  p.b.async_receive(p.mb.buffer(0, 100), r.handler());
  p.a.async_write_immediate(p.ma.buffer(0, 7), p.mb.remote(500), 0xfffffffe, s.handler());
  p.drain();
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
  CHECK(s.value == 7);
  CHECK(r.value.bytes == 7);
  CHECK(r.value.immediate == 0xfffffffeu);
  CHECK(r.value.written);
  CHECK(p.mb.text(0, 9) == "untouched");
  CHECK(p.mb.text(500, 7) == "payload");
}

TEST_CASE("read") {
  pair p;
  sent s;
  p.mb.put(2000, "to be read");
  p.a.async_read(p.ma.buffer(64, 10), p.mb.remote(2000, 10), s.handler());
  p.drain();
  REQUIRE(s.succeeded());
  CHECK(s.value == 10);
  CHECK(p.ma.text(63, 12) == std::string("\0to be read\0", 12));
}

TEST_CASE("more reads than may be in flight") {
  pair p;
  const unsigned count = 4 * p.a.options().max_reads;
  std::vector<sent> results(count);
  for (unsigned i = 0; i < count; ++i)
    p.mb.put_word(8 * i, i + 1);
  for (unsigned i = 0; i < count; ++i)
    p.a.async_read(p.ma.buffer(8 * i, 8), p.mb.remote(8 * i, 8), results[i].handler());
  p.drain();
  for (unsigned i = 0; i < count; ++i) {
    CAPTURE(i);
    REQUIRE(results[i].succeeded());
    REQUIRE(p.ma.word(8 * i) == i + 1);
  }
}

TEST_CASE("atomic operations of a queue pair report the old value") {
  pair p;
  outcome<std::uint64_t> first, second, third;
  if (!p.dev.has_atomics()) {
    p.a.async_compare_and_swap(p.mb.remote(0, 8), 0, 1, first.handler());
    p.a.async_fetch_add(p.mb.remote(0, 8), 1, second.handler());
    p.drain();
    CHECK(first.ec == asio::error::operation_not_supported);
    CHECK(second.ec == asio::error::operation_not_supported);
    CHECK(p.carries("still connected"));
    return;
  }
  p.mb.put_word(64, 41);
  p.a.async_fetch_add(p.mb.remote(64), 1, first.handler());
  p.a.async_compare_and_swap(p.mb.remote(64), 42, ~std::uint64_t(0), second.handler());
  p.a.async_compare_and_swap(p.mb.remote(64), 42, 7, third.handler());
  p.drain();
  REQUIRE(first.succeeded());
  REQUIRE(second.succeeded());
  REQUIRE(third.succeeded());
  CHECK(first.value == 41);
  CHECK(second.value == 42);
  CHECK(third.value == ~std::uint64_t(0));
  CHECK(p.mb.word(64) == ~std::uint64_t(0));
}

TEST_CASE("each of many atomic operations gets its own result") {
  pair p;
  if (!p.dev.has_atomics())
    return not_on_this_device("atomics");
  std::vector<outcome<std::uint64_t>> results(5 * p.a.options().send_depth);
  for (auto& r : results)
    p.a.async_fetch_add(p.mb.remote(0, 8), 3, r.handler());
  p.drain();
  for (std::size_t i = 0; i < results.size(); ++i) {
    CAPTURE(i);
    REQUIRE(results[i].succeeded());
    REQUIRE(results[i].value == 3 * i);
  }
  CHECK(p.mb.word(0) == 3 * results.size());
}

TEST_CASE("fenced and solicited operations") {
  pair p;
  p.mb.put(0, "first");
  sent read, write;
  got r;
  using flags = queue_pair::flags;
  p.b.async_receive(p.mb.buffer(500, 10), r.handler());
  {
    const queue_pair::batch together(p.a); // so that the read has not ended when the send is posted
    p.a.async_read(p.ma.buffer(0, 5), p.mb.remote(0, 5), read.handler());
    // The read's data is sent on: only the fence makes that safe.
    p.a.async_send(p.ma.buffer(0, 5), flags::fenced | flags::solicited, write.handler());
  }
  p.drain();
  REQUIRE(read.succeeded());
  REQUIRE(write.succeeded());
  CHECK(p.mb.text(500, 5) == "first");
}

TEST_CASE("the state and the attributes can be queried") {
  pair p;
  error_code ec;
  CHECK(p.a.state() == queue_pair_state::connected);
  const ibv_qp_attr attr = p.a.query(IBV_QP_STATE, ec);
  CHECK_FALSE(ec);
  if (p.dev.type() != transport::iwarp)
    CHECK(attr.qp_state == IBV_QPS_RTS);
  p.a.close();
  CHECK(p.a.state() == queue_pair_state::closed);
  p.a.query(IBV_QP_STATE, ec);
  CHECK(ec == asio::error::bad_descriptor);
}

TEST_CASE("an unreliable connected queue pair sends and writes") {
  queue_pair_options options;
  options.type = IBV_QPT_UC;
  device dev = open_device();
  protection_domain pd(dev);
  asio::io_context io;
  queue_pair probe(io);
  error_code ec;
  probe.open(pd, options, ec);
  if (ec || dev.type() == transport::iwarp)
    return not_on_this_device("unreliable connections");
  pair p(options);
  CHECK(p.carries("unreliable"));
  sent w, rd;
  p.a.async_write(p.ma.buffer(0, 4), p.mb.remote(100), w.handler());
  p.a.async_read(p.ma.buffer(0, 4), p.mb.remote(100), rd.handler());
  p.drain();
  CHECK(w.succeeded());
  CHECK(rd.ec == asio::error::operation_not_supported);
  CHECK(p.carries("still connected"));
}

} // namespace test::verbs_tests
