// SPDX-License-Identifier: BSL-1.0
// Revocations of a buffer by all connections that have lent it.
#include "catch.hpp"
#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/leases/lender.hpp"
#include "interposer/faults.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace test::revocations_of_all_tests {
namespace {

using asio_rdma::access; // there is a function of that name too
using namespace std::chrono_literals;

using revoked = outcome<revocation>;

/// An owner, b and to_second, with two peers: a and second.
struct two_peers : lender {
  /// The owner's connection to the second peer is in `context`, or in `io`.
  explicit two_peers(asio::io_context* context = nullptr)
      : other(context != nullptr ? *context : io), faults(dev.native_handle()) {
    second.open(pool);
    to_second.open(pool, giving(megabyte()));
    test::connection accepted, connected;
    listener.async_accept(to_second, accepted.handler());
    initiator.async_connect(second, listener.local_endpoint(), connected.handler());
    until([&] { return accepted.done() && connected.done(); });
    REQUIRE(accepted.succeeded());
    REQUIRE(connected.succeeded());
  }

  void until(const std::function<bool()>& condition) {
    if (&other == &io)
      return test::until(io, condition);
    test::until({&io, &other}, condition);
  }
  remote_region lend_second(const registered_buffer& part, access rights) {
    return test::lend(to_second, second, part, rights, [this](auto done) { until(done); });
  }
  error_code write_second(const remote_region& to) {
    sent s;
    second.async_write(asio::buffer("x"), to, s.handler());
    until([&] { return s.done(); });
    return s.ec;
  }
  void silence_second() {
    faults.hold_completions({nullptr, second.impl()->target_queue_pair()->number()});
  }

  asio::io_context& other;
  asio_rdma::connection second{io}, to_second{other};
  const registered_buffer memory = filled(pool, 20'000, 1);
  faults::injector faults;
};

} // namespace

TEST_CASE("a revocation at all connections lets the reads of all peers finish") {
  two_peers t;
  const remote_region first = t.lend(t.memory, access::remote_read);
  const remote_region other = t.lend_second(t.memory.slice(1), access::remote_read);
  std::vector<sent> reads(40);
  std::vector<registered_buffer> into;
  for (std::size_t i = 0; i != reads.size(); ++i) {
    const remote_region& from = i % 2 == 0 ? first : other;
    into.push_back(t.pool.allocate(from.size()));
    (i % 2 == 0 ? t.a : t.second).async_read(into.back(), from, reads[i].handler());
  }
  revoked all;
  async_revoke(t.io.get_executor(), t.memory, 1min, all.handler());
  t.until([&] {
    return all.done() &&
           std::all_of(reads.begin(), reads.end(), [](const sent& s) { return s.done(); });
  });
  CHECK(all.succeeded());
  CHECK(all.value == revocation{2, 0});
  for (const sent& s : reads)
    CHECK(s.succeeded());
  CHECK(t.memory.try_write_access());
  CHECK(t.write("x", first) == error::lease_revoked);
  CHECK(t.write_second(other) == error::lease_revoked);
  CHECK(t.lives());
}

TEST_CASE("a revocation at all connections asks only those that have lent these bytes") {
  two_peers t;
  const remote_region first = t.lend(t.memory.slice(0, 100), read_write);
  const remote_region other = t.lend_second(t.memory.slice(100, 100), read_write);
  revoked none, one, empty, again;
  const auto ex = t.io.get_executor();
  async_revoke(ex, t.memory.slice(200), 1min, none.handler());
  async_revoke(ex, registered_buffer(), 1min, empty.handler());
  async_revoke(ex, t.memory.slice(50, 50), 1min, one.handler());
  CHECK(none.calls + empty.calls + one.calls == 0); // never within the initiating function
  t.until([&] { return none.done() && empty.done() && one.done(); });
  CHECK(none.succeeded());
  CHECK(none.value == revocation{0, 0});
  CHECK(empty.value == revocation{0, 0});
  CHECK(one.value == revocation{1, 0});
  CHECK(t.write("x", first) == error::lease_revoked);
  CHECK(!t.write_second(other));
  async_revoke(ex, t.memory, 1min, again.handler());
  t.until([&] { return again.done(); });
  CHECK(again.value == revocation{1, 0});
  CHECK(t.write_second(other) == error::lease_revoked);
}

TEST_CASE("of all peers, one that does not answer uses up the grace, and none is disconnected") {
  two_peers t;
  const remote_region first = t.lend(t.memory, access::remote_read);
  const remote_region other = t.lend_second(t.memory, access::remote_read);
  t.silence_second();
  revoked all;
  async_revoke(t.io.get_executor(), t.memory, 50ms, all.handler());
  t.until([&] { return all.done(); });
  CHECK(all.succeeded());
  CHECK(all.value == revocation{2, 1});
  CHECK(t.memory.try_write_access());
  t.faults.release_completions();
  CHECK(t.lives());
  sent s;
  outcome<message> r;
  t.to_second.async_send(asio::buffer("x"), s.handler());
  t.second.async_receive(r.handler());
  t.until([&] { return s.done() && r.done(); });
  CHECK(s.succeeded());
  CHECK(r.succeeded());
  CHECK(t.write_second(other) == error::lease_revoked);
}

TEST_CASE("a connection that ends meanwhile is no error of a revocation at all connections") {
  two_peers t;
  const remote_region first = t.lend(t.memory, access::remote_read);
  const remote_region other = t.lend_second(t.memory, access::remote_read);
  t.silence_second();
  revoked all, late;
  async_revoke(t.io.get_executor(), t.memory, 1h, all.handler());
  if (GENERATE(false, true))
    t.second.close();
  else
    t.to_second.close();
  t.until([&] { return all.done(); });
  CHECK(all.succeeded());
  CHECK(all.value == revocation{2, 1});
  CHECK(t.memory.try_write_access());
  async_revoke(t.io.get_executor(), t.memory, 1h, late.handler());
  t.until([&] { return late.done(); });
  CHECK(late.succeeded());
  CHECK(late.value == revocation{0, 0});
}

TEST_CASE("a cancelled revocation at all connections continues at the connections") {
  two_peers t;
  const remote_region first = t.lend(t.memory, access::remote_read);
  const remote_region other = t.lend_second(t.memory, access::remote_read);
  t.silence_second();
  asio::cancellation_signal cancel;
  revoked all;
  async_revoke(t.io.get_executor(), t.memory, 1h,
               asio::bind_cancellation_slot(cancel.slot(), all.handler()));
  const auto type = GENERATE(asio::cancellation_type::total, asio::cancellation_type::partial,
                             asio::cancellation_type::terminal);
  cancel.emit(type);
  CHECK(all.calls == 0);
  t.io.restart();
  t.io.poll();
  CHECK(all.done() == (type != asio::cancellation_type::total));
  t.faults.release_completions();
  t.until([&] { return all.done() && t.memory.try_write_access(); });
  cancel.emit(type);
  t.io.restart();
  t.io.poll();
  CHECK(all.calls == 1);
  if (type == asio::cancellation_type::total)
    CHECK(all.value == revocation{2, 0});
  else
    CHECK(all.ec == asio::error::operation_aborted);
}

TEST_CASE("connections in several contexts do their parts, and the handler has its executor") {
  asio::io_context other_context{1};
  two_peers t(&other_context);
  const remote_region first = t.lend(t.memory, access::remote_read);
  const remote_region other = t.lend_second(t.memory, access::remote_read);
  const auto strand = asio::make_strand(t.io);
  bool in_strand = false;
  revoked all;
  async_revoke(t.io.get_executor(), t.memory, 1min,
               asio::bind_executor(strand, [&](error_code ec, revocation r) {
                 in_strand = strand.running_in_this_thread();
                 all.handler()(ec, r);
               }));
  t.io.run_for(10ms); // a wait for the other context keeps this one at work
  CHECK(all.calls == 0);
  CHECK_FALSE(t.io.stopped());
  t.until([&] { return all.done(); });
  CHECK(in_strand);
  CHECK(all.succeeded());
  CHECK(all.value == revocation{2, 0});
}

TEST_CASE("threads revoke one buffer at the same time, while peers read it") {
  asio::io_context other_context{1};
  two_peers t(&other_context);
  t.b.cancel(); // ends `idle`
  std::vector<std::thread> threads;
  const auto guards = std::pair(asio::make_work_guard(t.io), asio::make_work_guard(other_context));
  for (asio::io_context* io : {&t.io, &other_context}) {
    io->restart();
    threads.emplace_back([io] { io->run(); });
  }
  const registered_buffer into[2] = {t.pool.allocate(t.memory.size()),
                                     t.pool.allocate(t.memory.size())};
  for (int round = 0; round != 20; ++round) {
    auto lent = t.b.async_send_region(t.memory, asio::use_future);
    auto lent_second = t.to_second.async_send_region(t.memory, asio::use_future);
    lent.get(), lent_second.get();
    const auto a = std::get<remote_region>(t.a.async_receive_region(asio::use_future).get());
    const auto c = std::get<remote_region>(t.second.async_receive_region(asio::use_future).get());
    auto read_a = t.a.async_read(into[0], a, asio::use_future);
    auto read_c = t.second.async_read(into[1], c, asio::use_future);
    std::size_t grants[3] = {};
    std::vector<std::thread> revoking;
    for (std::size_t& n : grants)
      revoking.emplace_back([&] {
        n = async_revoke(t.io.get_executor(), t.memory, 1min, asio::use_future).get().grants;
      });
    for (std::thread& r : revoking)
      r.join();
    CHECK(grants[0] + grants[1] + grants[2] >= 2); // each loan by at least one of them
    CHECK(t.memory.try_write_access());
    CHECK(read_a.get() == t.memory.size());
    CHECK(read_c.get() == t.memory.size());
  }
  t.io.stop();
  other_context.stop();
  for (std::thread& r : threads)
    r.join();
}

TEST_CASE("a context that is destroyed destroys the handler of a revocation at all connections") {
  const auto alive = std::make_shared<int>();
  {
    two_peers t;
    const remote_region first = t.lend_second(t.memory, access::remote_read);
    t.silence_second();
    async_revoke(t.io.get_executor(), t.memory, 1h,
                 [alive](error_code, revocation) { FAIL("was called"); });
  }
  CHECK(alive.use_count() == 1);
}

} // namespace test::revocations_of_all_tests
