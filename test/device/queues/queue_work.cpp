// SPDX-License-Identifier: BSL-1.0
// A completion queue's work of its context, when two threads meet inside the library.
#include "catch.hpp"

#include "device/support/pair.hpp"
#include "interposer/watched_locks.hpp"
#include "queues/completion_service.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace test::queue_work_tests {
namespace {

using detail::completion_queue_impl;
using detail::completion_service;
using detail::disposal;

/// An operation that the test itself completes.
struct own_operation final : detail::operation {
  own_operation() noexcept : operation(&own_operation::run) {}
  static void run(operation* base, disposal how) {
    auto& self = static_cast<own_operation&>(*base);
    ++(how == disposal::destroy ? self.destroyed : self.completed);
  }
  void complete_by(completion_queue_impl& cq) {
    detail::operation_list done;
    done.push_back(*this);
    cq.complete(done);
  }
  int completed = 0, destroyed = 0;
};

std::shared_ptr<completion_queue_impl> make_queue(asio::io_context& io, const device& dev) {
  error_code ec;
  auto result = completion_service::of(io).make_queue(dev, {}, ec);
  detail::throw_if(ec, "make_queue");
  return result;
}

/// Called once, when an operation has been counted and its work has not been added yet.
std::function<void()> before_work;

} // namespace

// The linker replaces completion_queue_impl::hold_work by this function (--wrap).
#define HOLD_WORK _ZN9asio_rdma6detail21completion_queue_impl9hold_workEv
#define NAME2(prefix, name) prefix##name
#define NAME(prefix, name) NAME2(prefix, name)
extern "C" void NAME(__real_, HOLD_WORK)(completion_queue_impl*);
extern "C" void NAME(__wrap_, HOLD_WORK)(completion_queue_impl*);
void NAME(__wrap_, HOLD_WORK)(completion_queue_impl* queue) {
  if (const auto once = std::exchange(before_work, nullptr))
    once();
  NAME(__real_, HOLD_WORK)(queue);
}

TEST_CASE("an operation keeps its context though another thread has yet to add the work of both") {
  const bool background = GENERATE(false, true); // the first is a receive of the library's own
  const device dev = open_device();
  asio::io_context io;
  const auto queue = make_queue(io, dev);
  own_operation first, second;
  bool reached = false;
  before_work = [&] {
    reached = true;
    queue->operation_starting();
    io.poll(); // stops a context without work
    CHECK_FALSE(io.stopped());
  };
  if (background) {
    queue->background_starting();
    queue->background_ending();
  } else {
    queue->operation_starting();
  }
  CHECK(reached);
  second.complete_by(*queue);
  io.poll();
  CHECK(second.completed == 1);
  CHECK_FALSE(io.stopped());
  first.complete_by(*queue);
  io.poll();
  CHECK(first.completed == 1);
  CHECK(io.stopped());
}

// The destruction of the context blocks until the other thread has left the context's scheduler. If
// it does not, it is over within the time for which the other thread waits.
TEST_CASE("a context is not destroyed while another thread queues a completed operation in it") {
  const device dev = open_device();
  auto io = std::make_unique<asio::io_context>();
  auto queue = make_queue(*io, dev);
  own_operation op;
  queue->operation_starting();
  std::atomic<bool> destroyed{false};
  bool reached = false, too_early = false;
  std::thread destroyer;
  {
    const watched_locks watched([&] {
      if (std::exchange(reached, true))
        return;
      destroyer = std::thread([&] {
        io.reset();
        destroyed = true;
      });
      for (int left = 100; left != 0 && !destroyed; --left)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      too_early = destroyed;
    });
    op.complete_by(*queue);
  }
  REQUIRE(reached);
  CHECK_FALSE(too_early);
  destroyer.join();
  CHECK(op.completed == 0);
  CHECK(op.destroyed == 1);
}

} // namespace test::queue_work_tests
