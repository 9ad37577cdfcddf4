// SPDX-License-Identifier: BSL-1.0
//
// Operations that complete together and have one strand, in a context that several threads may run.
#include <catch.hpp>

#include "device/asio/asio_support.hpp"

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <algorithm>
#include <array>
#include <barrier>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace test::asio_strands_tests {
namespace {

constexpr int receives = 8;

/// Receives that end together: when their queue pair is closed.
struct closed_receives {
  template <class Executor, class Handler>
  void run(const Executor& ex, Handler handler) {
    for (int i = 0; i < receives; ++i)
      receive(ex, handler, i);
    q.a.close();
  }
  template <class Executor, class Handler>
  void receive(const Executor& ex, Handler handler, int i) {
    q.a.async_receive(g.part(1), asio::bind_executor(
                                     ex, [handler, i](error_code, auto&&) mutable { handler(i); }));
  }
  /// Runs the context until it has no work, and counts the exceptions.
  int run_and_catch() {
    int thrown = 0;
    for (;;)
      try {
        io.run();
        return thrown;
      } catch (const std::runtime_error&) {
        ++thrown;
      }
  }

  ground g;
  asio::io_context io;
  joined q{io, g};
};

/// An executor without any property.
class plain_executor {
public:
  explicit plain_executor(asio::io_context& io) noexcept : io_(&io) {}
  template <class Function>
  void execute(Function f) const {
    io_->get_executor().execute(std::move(f));
  }
  friend bool operator==(const plain_executor&, const plain_executor&) = default;

private:
  asio::io_context* io_;
};

std::vector<int> all_in_order() {
  std::vector<int> all(receives);
  for (int i = 0; i < receives; ++i)
    all[static_cast<std::size_t>(i)] = i;
  return all;
}

} // namespace

TEST_CASE("operations that complete together go to their strand together") {
  closed_receives r;
  recording_executor::record record;
  const auto strand = asio::make_strand(recording_executor(r.io, record));
  std::vector<int> called;
  r.run(strand, [&](int i) {
    CHECK(strand.running_in_this_thread());
    called.push_back(i);
  });
  r.io.run();
  CHECK(called == all_in_order());
  CHECK(record.executed == 1);
}

TEST_CASE("the strand may be in an any_io_executor, as that of a coroutine is") {
  closed_receives r;
  const asio::strand<asio::io_context::executor_type> strand(r.io.get_executor());
  const asio::any_io_executor ex(strand);
  std::vector<int> called;
  int others = 0;
  r.run(ex, [&](int i) {
    CHECK(strand.running_in_this_thread());
    if (i == 0)
      asio::post(strand, [&] { others = static_cast<int>(called.size()); });
    called.push_back(i);
  });
  r.io.run();
  CHECK(called == all_in_order());
  CHECK(others == receives); // they were in the strand before the function
}

TEST_CASE(
    "a handler of a strand that throws changes neither the calls of the others nor the order") {
  closed_receives r;
  const auto strand = asio::make_strand(r.io);
  std::vector<int> called;
  const auto handler = [&](int i) {
    CHECK(strand.running_in_this_thread());
    called.push_back(i);
    if (i % 3 == 0)
      throw std::runtime_error("a handler's own");
  };
  SECTION("in one group") { r.run(strand, handler); }
  SECTION("in two groups, with a handler of no strand between them") {
    for (int i = 0; i < receives; ++i) {
      if (i == receives / 2)
        r.receive(
            asio::any_io_executor(r.io.get_executor()), [](int) {}, 0);
      r.receive(strand, handler, i);
    }
    r.q.a.close();
  }
  CHECK(r.run_and_catch() == 3);
  CHECK(called == all_in_order());
}

TEST_CASE("handlers of a strand that are ready together are called, also after stop") {
  closed_receives r;
  std::vector<int> called;
  r.run(asio::make_strand(r.io), [&](int i) {
    r.io.stop();
    called.push_back(i);
  });
  r.io.run();
  CHECK(called == all_in_order());
}

TEST_CASE("handlers may have any executor, and no known type") {
  closed_receives r;
  int called = 0;
  for (int i = 0; i < 2; ++i) {
    r.q.a.async_receive(r.g.part(1), asio::any_completion_handler<void(error_code, received)>(
                                         [&](error_code, const received&) { ++called; }));
    r.receive(
        asio::any_completion_executor(r.io.get_executor()), [&](int) { ++called; }, i);
    r.receive(
        plain_executor(r.io), [&](int) { ++called; }, i);
  }
  r.q.a.close();
  r.io.run();
  CHECK(called == 6);
}

TEST_CASE("handlers of a strand whose context ends first are destroyed") {
  const auto handlers = std::make_shared<int>();
  closed_receives r;
  {
    asio::thread_pool pool(1);
    pool.stop();
    pool.join();
    r.run(asio::make_strand(pool), [handlers](int) { FAIL(); });
    CHECK(handlers.use_count() == 1 + receives);
    r.io.run();
    CHECK(handlers.use_count() == 1 + receives);
  }
  CHECK(handlers.use_count() == 1);
}

TEST_CASE("handlers of an executor that is no strand may run at the same time") {
  closed_receives r;
  asio::thread_pool pool(receives);
  auto meet = std::make_shared<std::barrier<>>(receives);
  r.run(pool.get_executor(), [meet](int) { meet->arrive_and_wait(); });
  r.io.run();
  pool.join();
}

// Each strand's handlers run one at a time, and in order, while two threads run the context.
TEST_CASE("the handlers of two strands on two threads stay in order", "[threads]") {
  constexpr int sends = 2000, window = 16;
  ground g;
  asio::io_context io(2);
  struct flow {
    flow(asio::io_context& context, const ground& ground)
        : strand(asio::make_strand(context)), q(context, ground), g(ground) {}

    void send() {
      q.a.async_write(
          g.part(0), g.remote_part(1),
          asio::bind_executor(strand, [this, n = started++](error_code ec, std::size_t) {
            wrong += ec || n != ended || ++inside != 1 ? 1 : 0;
            ++ended;
            if (started != sends)
              send();
            --inside;
          }));
    }

    asio::strand<asio::io_context::executor_type> strand;
    joined q;
    const ground& g;
    int started = 0, ended = 0, inside = 0, wrong = 0;
  };
  std::array<flow, 2> flows{flow(io, g), flow(io, g)};
  for (flow& f : flows)
    asio::post(f.strand, [&f] {
      for (int i = 0; i < window; ++i)
        f.send();
    });
  std::thread other([&] { io.run(); });
  io.run();
  other.join();
  for (const flow& f : flows) {
    CHECK(f.ended == sends);
    CHECK(f.wrong == 0);
  }
}

} // namespace test::asio_strands_tests
