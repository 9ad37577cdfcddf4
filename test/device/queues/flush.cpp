// SPDX-License-Identifier: BSL-1.0
// FLUSH. rxe of Linux 7.3 has it, if the library is compiled with an rdma-core that has it.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>

namespace test::flush_tests {

namespace {

using strand_type = asio::strand<asio::io_context::executor_type>;

// Starts a FLUSH of a queue pair, whose handler is called once, later, and through its executor.
error_code flush(pair& p, queue_pair& q, const remote_buffer& range,
                 placement what = placement::visible,
                 queue_pair::flags how = queue_pair::flags::none) {
  int calls = 0;
  error_code result;
  strand_type strand(p.io.get_executor());
  q.async_flush(range, what, how, asio::bind_executor(strand, [&](error_code ec) {
                  ++calls;
                  result = ec;
                  CHECK(strand.running_in_this_thread());
                }));
  CHECK(calls == 0);
  p.until([&] { return calls != 0; });
  CHECK(calls == 1);
  return result;
}

} // namespace

TEST_CASE("a FLUSH, or operation_not_supported where the device has none") {
  pair p;
  sent w;
  p.ma.put(0, "flushed");
  p.a.async_write(p.ma.buffer(0, 7), p.mb.remote(100), w.handler());
  const error_code ec = flush(p, p.a, p.mb.remote(100, 7));
  INFO(describe(ec));
  p.until([&] { return w.done(); });
  CHECK(w.succeeded());
  if (!p.dev.has_flush(placement::visible)) {
    CHECK(ec == asio::error::operation_not_supported);
    error_code refused;
    const memory_region none(p.pd, p.ma.data(), 64, access::flush_visible, refused);
    CHECK(refused == asio::error::operation_not_supported);
  } else {
    CHECK(!ec);
    CHECK(p.mb.text(100, 7) == "flushed");
  }
  CHECK(p.carries("unharmed")); // in either case
}

TEST_CASE("a FLUSH of a queue pair that cannot carry it out") {
  pair p;
  queue_pair closed(p.io), open(p.io, p.pd);
  CHECK(flush(p, closed, p.mb.remote()) == asio::error::bad_descriptor);
  CHECK(flush(p, open, p.mb.remote()) ==
        (p.dev.has_flush() ? asio::error::not_connected : asio::error::operation_not_supported));
  remote_buffer range = p.mb.remote();
  range.size = (std::uint64_t(1) << 31) + 1;
  CHECK(flush(p, p.a, range) == asio::error::message_size);
  CHECK(flush(p, p.a, p.mb.remote(), placement()) == asio::error::invalid_argument);
  queue_pair_options options;
  options.type = IBV_QPT_UC;
  queue_pair unreliable(p.io);
  error_code ec;
  unreliable.open(p.pd, options, ec); // not every device has this type
  if (!ec)
    CHECK(flush(p, unreliable, p.mb.remote()) == asio::error::operation_not_supported);
  CHECK(p.carries("unharmed"));
}

TEST_CASE("FLUSHes and other operations in one batch end in order") {
  pair p;
  if (!p.dev.has_flush(placement::visible))
    return;
  std::string order;
  const auto note = [&order](char c) {
    return [&order, c](error_code ec, auto&&...) {
      order += ec ? '!' : c;
    };
  };
  p.ma.put(0, "0123456789");
  {
    queue_pair::batch b(p.a);
    p.a.async_write(p.ma.buffer(0, 5), p.mb.remote(0), queue_pair::flags::unsignaled, note('w'));
    p.a.async_flush(p.mb.remote(0, 5), placement::visible, note('f'));
    p.a.async_flush(p.mb.remote(0, 10), placement::visible, queue_pair::flags::unsignaled,
                    note('F'));
    p.a.async_write(p.ma.buffer(5, 5), p.mb.remote(5), queue_pair::flags::fenced, note('v'));
    p.a.async_read(p.ma.buffer(100, 10), p.mb.remote(0), note('r'));
    CHECK(order.empty());
  }
  p.until([&] { return order.size() == 5; });
  CHECK(order == "wfFvr");
  CHECK(p.ma.text(100, 10) == "0123456789");
}

TEST_CASE("more FLUSHes than the send queue has places") {
  queue_pair_options options;
  options.send_depth = 4;
  pair p(options);
  if (!p.dev.has_flush(placement::visible))
    return;
  int flushed = 0, written = 0;
  for (int i = 0; i < 100; ++i) {
    p.a.async_write(p.ma.buffer(0, 64), p.mb.remote(),
                    [&](error_code ec, std::size_t) { written += !ec; });
    p.a.async_flush(p.mb.remote(0, 64), placement::visible, [&](error_code ec) { flushed += !ec; });
  }
  p.drain();
  CHECK(written == 100);
  CHECK(flushed == 100);
}

TEST_CASE("a FLUSH of memory that gives no right to it ends the queue pair") {
  pair p(impatient());
  if (!p.dev.has_flush(placement::visible))
    return;
  memory m(p.pd, 4096, all_rights);
  const error_code ec = flush(p, p.a, m.remote());
  INFO(describe(ec));
  CHECK((ec == IBV_WC_REM_ACCESS_ERR || ec == IBV_WC_REM_INV_REQ_ERR || ec == IBV_WC_REM_OP_ERR));
  CHECK(p.a.state() == queue_pair_state::failed);
}

} // namespace test::flush_tests
