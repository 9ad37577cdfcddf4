// SPDX-License-Identifier: BSL-1.0
// Leases, memory that is lent, and the ends of both.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"
#include "device/leases/lender.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

namespace test::leases_tests {
namespace {

using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

} // namespace

TEST_CASE("a lease ends here first, then at the owner, and its memory is free") {
  remote_memory_options m = megabyte();
  m.grace = 100ms;
  lender t(m);
  const std::size_t before = t.in_use();
  const remote_region r = t.request(4096, read_write, 50ms);
  const auto deadline = r.deadline();
  CHECK(!t.write("in time", r));
  t.wait(deadline);
  CHECK(t.write("late", r) == error::lease_expired);
  CHECK(t.lives());
  t.until([&] { return t.in_use() == before; });
  const auto others = occupy(t.pool, 4096);
  const registered_buffer text = t.pool.allocate(64);
  t.refused_by_device([&](sent& s) { t.a.async_write(text, r.buffer(), s.handler()); });
  for (const registered_buffer& b : others)
    CHECK(all_are(b, '#'));
}

TEST_CASE("a lease is renewed, up to the owner's limit") {
  remote_memory_options m = megabyte();
  m.default_lease = 200ms;
  m.longest_lease = 10min;
  lender t(m);
  const remote_region r = t.request(4096);
  const auto first = r.deadline();
  CHECK(first <= std::chrono::steady_clock::now() + 200ms);
  outcome<void> renewed;
  t.a.async_renew(r, 1h, renewed.handler());
  t.until([&] { return renewed.done(); });
  CHECK(renewed.ec == error_code());
  CHECK(r.deadline() > first + 9min);
  CHECK(r.deadline() <= std::chrono::steady_clock::now() + 10min);
  t.wait(first);
  CHECK(!t.write("still mine", r));

  const remote_region other = t.request(64);
  t.b.revoke();
  CHECK(t.lives());
  outcome<void> late;
  t.a.async_renew(other, 1s, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.ec == error::lease_revoked);
}

TEST_CASE("memory that is lent: for reading, for writing, taken back, handed back") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  std::memcpy(memory.data(), "lent", 4);
  std::optional<remote_region> r = t.lend(memory.slice(0, 500), access::remote_read);
  CHECK(r->size() == 500);
  CHECK(r->deadline() == std::chrono::steady_clock::time_point::max());
  CHECK(t.read(4, *r) == "lent");
  CHECK(t.write("x", *r) == error::rights_refused);
  CHECK(memory.try_read_access());
  CHECK(!memory.try_write_access());
  CHECK(memory.slice(500).try_write_access());
  r.reset(); // releases it
  bool free = false;
  memory.async_write_access(t.io.get_executor(), [&](error_code ec, buffer_access) { free = !ec; });
  t.until([&] { return free; });

  r = t.lend(memory, read_write);
  CHECK(!memory.try_read_access());
  outcome<void> in_use;
  t.b.async_send_region(memory, in_use.handler());
  t.until([&] { return in_use.done(); });
  CHECK(in_use.ec == error::buffer_in_use);
  CHECK(!t.write("from a", *r));
  CHECK(t.placed());
  CHECK(t.b.revoke(t.pool.allocate(10)) == 0);
  CHECK(t.b.revoke(memory.slice(999)) == 1);
  CHECK(memory.try_write_access());
  CHECK(text_of(memory, 0, 6) == "from a");
  CHECK(t.lives());
  CHECK(t.write("x", *r) == error::lease_revoked);

  r = t.lend(memory, read_write);
  CHECK(!t.write("again", *r));
  outcome<void> given;
  t.a.async_send_region(*r, given.handler());
  const registered_buffer back = t.take_back();
  CHECK(back.shares_memory_with(memory));
  CHECK(text_of(back, 0, 5) == "again");
  CHECK(back.try_write_access());
  CHECK(t.lives());
}

TEST_CASE("memory that is lent for a time") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const remote_region r = t.lend(memory, access::remote_write, 5min);
  CHECK(r.deadline() > std::chrono::steady_clock::now() + 4min);
  CHECK(r.deadline() <= std::chrono::steady_clock::now() + 5min);
  CHECK(!t.write("x", r));
  outcome<void> wrong;
  t.b.async_send_region(memory, access::local_read, wrong.handler());
  t.until([&] { return wrong.done(); });
  CHECK(wrong.ec == asio::error::invalid_argument);
}

TEST_CASE("a cancelled request leaves nothing at the owner, a cancelled receive loses nothing") {
  lender t;
  const std::size_t before = t.in_use();
  asio::cancellation_signal cancel;
  region_outcome request;
  t.a.async_request_memory(4096, asio::bind_cancellation_slot(cancel.slot(), request.handler()));
  cancel.emit(asio::cancellation_type::total);
  t.until([&] { return request.done(); });
  CHECK(request.ec == asio::error::operation_aborted);
  CHECK(t.lives());
  t.until([&] { return t.in_use() == before; });

  arrival receive, all;
  t.a.async_receive_region(asio::bind_cancellation_slot(cancel.slot(), receive.handler()));
  t.a.async_receive_region(all.handler());
  cancel.emit(asio::cancellation_type::partial);
  t.a.cancel();
  t.until([&] { return receive.done() && all.done(); });
  CHECK(receive.ec == asio::error::operation_aborted);
  CHECK(all.ec == asio::error::operation_aborted);
  const registered_buffer memory = t.pool.allocate(64);
  CHECK(t.lend(memory, access::remote_read).size() == 64);
}

TEST_CASE("every wait ends with the connection, and all memory returns") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const std::size_t before = t.in_use();
  const remote_region r = t.request(4096);
  const remote_region lent = t.lend(memory, read_write);
  arrival waiting, at_peer;
  t.a.async_receive_region(waiting.handler());
  t.b.async_receive_region(at_peer.handler());
  const bool orderly = GENERATE(false, true);
  outcome<void> closed_a, closed_b;
  if (orderly) {
    t.a.async_close(closed_a.handler());
    t.b.async_close(closed_b.handler());
    t.until([&] { return closed_a.done() && closed_b.done(); });
    CHECK(closed_a.ec == error_code());
    CHECK(closed_b.ec == error_code());
  } else {
    t.a.close();
  }
  t.until([&] { return waiting.done() && at_peer.done(); });
  CHECK(waiting.ec == asio::error::operation_aborted);
  CHECK(at_peer.ec);
  t.until([&] { return static_cast<bool>(memory.try_write_access()); });
  region_outcome late;
  t.b.async_request_memory(64, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.ec);
  CHECK(r.deadline() == std::chrono::steady_clock::time_point::min());
  t.a.close();
  t.b.close();
  t.until([&] { return t.in_use() < before; });
}

TEST_CASE("a grant that is revoked while the connection is about to end is revoked at once") {
  lender t;
  const registered_buffer memory = t.pool.allocate(1000);
  const remote_region lent = t.lend(memory, read_write);
  std::string view(200000, 'x'); // is posted, so only terminal cancels it
  const registered_buffer large = t.pool.allocate(view.size());
  memory_region target(t.pd, view.data(), view.size(), most_rights(t.dev));
  asio::cancellation_signal cancel;
  sent s;
  outcome<void> ended;
  t.b.async_wait_disconnect(ended.handler());
  t.b.async_write(const_buffer(large.data(), large.size(), large.lkey()), target.remote(),
                  asio::bind_cancellation_slot(cancel.slot(), s.handler()));
  cancel.emit(asio::cancellation_type::terminal);
  CHECK(t.b.revoke(memory) == 1);
  CHECK(memory.try_write_access());
  t.until([&] { return s.done() && ended.done(); });
  CHECK(ended.ec == asio::error::operation_aborted);
}

TEST_CASE("a lease does not keep an idle context running") {
  lender t;
  const remote_region r = t.request(64, read_write, 10min);
  t.b.cancel();
  t.io.restart();
  t.io.run(); // returns, as there is no work
  CHECK(t.lives());
}

} // namespace test::leases_tests
