// SPDX-License-Identifier: BSL-1.0
// Scenes that are played repeatedly, each time with another failing allocation.
#pragma once

#include <catch.hpp>
#include <interposer/failing_allocation.hpp>

#include <asio_rdma/error.hpp>
#include <boost/asio/io_context.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <new>
#include <string>
#include <thread>
#include <utility>

namespace test {

/// A record of a scene's handlers: whether each was called once, or was destroyed without a call
/// because its initiating function threw. It allocates nothing while a scene is played.
class handler_accounts {
  struct entry {
    const char* name = "";
    int calls = 0;
    int destroyed = 0;
    bool threw = false;
    asio_rdma::error_code ec;
  };

public:
  /// A completion handler of any signature that begins with an error code. The call is recorded,
  /// then `Then` is called with the same arguments.
  template <class Then>
  class handler {
  public:
    handler(entry& e, Then then) : entry_(&e), then_(std::move(then)) {}
    handler(handler&& other) noexcept
        : entry_(std::exchange(other.entry_, nullptr)), then_(std::move(other.then_)) {}
    ~handler() {
      if (entry_ != nullptr)
        ++entry_->destroyed;
    }

    template <class... Args>
    void operator()(asio_rdma::error_code ec, Args&&... args) {
      ++entry_->calls;
      entry_->ec = ec;
      then_(ec, std::forward<Args>(args)...);
    }

  private:
    entry* entry_;
    Then then_;
  };

  /// Calls `initiate(handler)`. `name` is used in the report of a failure.
  template <class Initiate, class Then>
  void start(const char* name, Initiate&& initiate, Then then) {
    entry& e = entries_.at(used_++);
    e.name = name;
    try {
      std::forward<Initiate>(initiate)(handler<Then>(e, std::move(then)));
    } catch (const std::bad_alloc&) {
      e.threw = true;
      refused_ = true;
    }
  }
  template <class Initiate>
  void start(const char* name, Initiate&& initiate) {
    start(name, std::forward<Initiate>(initiate), [](auto&&...) {});
  }

  /// Whether an initiating function has thrown.
  bool refused() const noexcept { return refused_; }
  /// Whether an operation has completed with an error.
  bool any_failed() const noexcept {
    for (std::size_t i = 0; i < used_; ++i)
      if (entries_[i].ec)
        return true;
    return false;
  }
  /// Whether each operation that was started has completed.
  bool all_called() const noexcept {
    for (std::size_t i = 0; i < used_; ++i)
      if (!entries_[i].threw && entries_[i].calls == 0)
        return false;
    return true;
  }

  /// Runs the context (an `io_context`, or an object with its functions `restart`, `run_one_until`
  /// and `stopped`) until each operation that was started has completed. Returns false at once if
  /// an initiating function has thrown, if an operation has failed, or if the context has no more
  /// work. After a failure the peer's operation may wait for ever.
  template <class Context>
  bool run(Context& io) {
    const auto stuck = [this] {
      return refused_ || any_failed();
    };
    return run(io, [&] { return stuck() || all_called(); }) && !stuck();
  }
  /// Like run(), but continues after failures.
  template <class Context>
  bool run_to_last(Context& io) {
    return run(io, [this] { return all_called(); });
  }
  /// Runs the context until it has no more work; false if that takes too long.
  template <class Context>
  bool run_to_end(Context& io) {
    run(io, [] { return false; });
    return io.stopped();
  }

  /// An empty string, or the error found after the context has ended.
  std::string problem() const {
    for (std::size_t i = 0; i < used_; ++i) {
      const entry& e = entries_[i];
      if (e.calls != (e.threw ? 0 : 1) || e.destroyed != 1)
        return std::string(e.name) + (e.threw ? " threw" : " returned") +
               ", its handler was called " + std::to_string(e.calls) + " times and destroyed " +
               std::to_string(e.destroyed) + " times";
    }
    return {};
  }
  std::string unfinished() const {
    std::string result;
    for (std::size_t i = 0; i < used_; ++i)
      if (!entries_[i].threw && entries_[i].calls == 0)
        result += std::string(" ") + entries_[i].name;
    return result;
  }

private:
  template <class Context, class Condition>
  bool run(Context& io, Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    io.restart();
    while (!condition()) {
      try {
        if (io.run_one_until(end) == 0)
          return false;
      } catch (const std::bad_alloc&) { // a context may be run on after that
      }
    }
    return true;
  }

  std::array<entry, 128> entries_;
  std::size_t used_ = 0;
  bool refused_ = false;
};

/// Plays a scene whose n-th allocation fails; 0 for none. Returns the problem, or an empty string.
///
/// `Scene` is constructed before allocations are counted. It has a member `io`, the context, or an
/// object with the same functions that runs several;
/// `play(accounts)`, which starts operations by `accounts.start` and may run the context by
/// `accounts.run`; and `close()`, which closes the I/O objects. If each initiating function has
/// returned, all operations complete without `close`. If the failure of one operation may leave
/// another one waiting, the scene also has a member `broken()`, which returns whether the
/// connection has failed. Then all operations complete without `close` only if the connection or no
/// operation has failed.
template <class Scene>
std::string play_scene(std::size_t n, bool& reached) {
  handler_accounts accounts;
  Scene scene;
  std::string problem;
  {
    const failing_allocation failing(n);
    try {
      scene.play(accounts);
    } catch (const std::bad_alloc&) { // thrown by another function
    }
    accounts.run(scene.io);
    reached = failing.failed();
  }
  bool complete = !accounts.refused();
  if constexpr (requires { scene.broken(); })
    complete = (complete && !accounts.any_failed()) || scene.broken();
  if (complete && !accounts.run_to_last(scene.io))
    problem = "never completed:" + accounts.unfinished();
  if (!reached && accounts.any_failed())
    problem = "an operation failed though each allocation succeeded";
  scene.close();
  if (!accounts.run_to_end(scene.io))
    problem += "; the context still has work";
  return problem.empty() ? accounts.problem() : problem;
}

/// Plays a scene once for each of its allocations, each time on a new thread: the memory that
/// threads cache for operations must not outlast one play.
template <class Scene>
void fail_each_allocation() {
  bool reached = false;
  std::size_t n = 0;
  do {
    ++n;
    std::string problem = "the scene threw";
    std::thread([&] {
      try {
        problem = play_scene<Scene>(n, reached);
      } catch (const std::exception& e) {
        problem = e.what();
      }
    }).join();
    CAPTURE(n);
    REQUIRE(problem == "");
  } while (reached);
}

} // namespace test
