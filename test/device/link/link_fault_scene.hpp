// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/connection_impl.hpp"
#include "device/connection/connection_support.hpp"
#include "device/support/ending.hpp"
#include "interposer/faults.hpp"
#include "streams/stream_impl.hpp"

#include <catch.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>

namespace test {

/// One kind of operation, started at `a` of a scene.
template <class Scene>
struct link_kind {
  const char* name;
  void (*start)(Scene&, unsigned i, ending_handler);
  void (*feed)(Scene&, unsigned i) = nullptr;  ///< The peer's part, so that it completes.
  faults::call post = faults::call::post_send; ///< The call by which it is posted.
  bool (*offered)(const device&) = nullptr;    ///< Null: every device offers it.
  bool registers = false;                      ///< It registers memory for itself.
  bool exposes = false;                        ///< It exposes user memory to the peer.
  bool is_last = false;                        ///< No operation may follow it.
  bool closes = false;                         ///< It succeeds after both goodbyes.
  enum class end { reason, none, only } ends = end::reason; ///< See below.
};
// `reason`: at the end of the connection the operation ends with the reason of that end. `none`: it
// waits for a state that exists after the end too, so it ends without an error. `only`: it waits
// for the end of the connection.

/// Two connections (`talk`) or streams (`stream_pair`), a and b, and an injector. `Scene` adds all
/// that the operations of its kinds need to succeed.
template <class Scene, class Pair>
class link_scene {
public:
  static constexpr unsigned most = 3;
  using kind_type = link_kind<Scene>;
  using end = typename kind_type::end;
  using is_reason = std::function<bool(const error_code&)>;

  link_scene(const link_scene&) = delete;
  link_scene& operator=(const link_scene&) = delete;

  /// Calls `f` with each kind of operation that the device offers.
  static void each(const std::function<void(const kind_type&)>& f) {
    const device dev = open_device();
    for (const kind_type& kind : Scene::kinds()) {
      if (kind.offered != nullptr && !kind.offered(dev))
        continue;
      INFO("operation: " << kind.name);
      f(kind);
    }
  }

  auto& a() { return pair_->a; }
  auto& b() { return pair_->b; }
  const memory_pool& pool() const { return pair_->pool; }
  bool is_iwarp() const { return pair_->dev.type() == transport::iwarp; }
  /// Whether the device has completed a request before its post returns: rxe and siw do.
  bool completes_at_once() const { return is_software(pair_->dev); }
  ibv_qp* native() { return a().impl()->target_queue_pair()->native_handle(); }

  /// The number of operations that are started at a time.
  unsigned at_once() const { return kind.is_last ? 1 : 2; }
  void start(unsigned i) {
    started_[i] = true;
    kind.start(static_cast<Scene&>(*this), i, {&ends[i], &count_});
    CHECK(ends[i].calls == 0);
  }
  void feed(unsigned i) {
    if (kind.feed != nullptr)
      kind.feed(static_cast<Scene&>(*this), i);
  }
  void start_all() {
    for (unsigned i = 0; i < at_once(); ++i) {
      start(i);
      feed(i);
    }
  }
  /// Starts all operations, with all later completions of `a` held back. The completions of b are
  /// held back too, if b's reaction would end the connection.
  void start_held() {
    faults.hold_completions({nullptr, kind.is_last ? 0 : number, true});
    start_all();
    wait_held(kind.ends == end::only ? 0 : at_once());
    for (const ending& e : ends)
      CHECK(e.calls == 0);
  }

  void until(const std::function<bool()>& condition) { pair_->until(condition); }
  void wait(unsigned first, unsigned n) {
    until([&] {
      for (unsigned i = first; i < first + n; ++i)
        if (!ends[i].done())
          return false;
      return true;
    });
  }
  void run_for(unsigned turns) {
    while (turns-- != 0)
      turn();
  }
  void expect_succeeded() {
    wait(0, at_once());
    for (unsigned i = 0; i < at_once(); ++i) {
      INFO(describe(ends[i].ec));
      CHECK(ends[i].succeeded());
    }
  }
  /// An operation that succeeded before the fault need not end with the reason.
  void expect_some_failed(const is_reason& right) {
    wait(0, at_once());
    for (unsigned i = 0; i < at_once(); ++i)
      if (!ends[i].succeeded())
        check_failed(i, right);
    expect_end(right);
  }
  /// All operations end with the reason, and so does a later one.
  void expect_failed(const is_reason& right) {
    wait(0, at_once());
    for (unsigned i = 0; i < at_once(); ++i)
      check_failed(i, right);
    expect_end(right);
  }

private:
  void expect_end(const is_reason& right) {
    for (const auto* buffers : {&mine, &big})
      for (const registered_buffer& m : *buffers)
        CHECK_FALSE(buffer_access().try_begin_write(m)); // the buffer is no longer in use
    until([&] { return disconnect.done(); });
    start(2);
    wait(2, 1);
    if (kind.closes && ends[0].succeeded() && ends[2].succeeded())
      return; // both goodbyes had been said before the failure
    check_failed(2, right);
    if (Scene::disconnect_has_reason && kind.ends == end::reason) {
      INFO(describe(disconnect.ec) << ", " << describe(ends[2].ec));
      CHECK(disconnect.ec == ends[2].ec);
      for (const ending& e : ends) // also of an operation that the device has flushed
        CHECK((e.ec != asio::error::connection_reset || e.ec == disconnect.ec));
    }
  }

public:
  /// Closes both sides. Checks that every operation has ended once, that the pool has all its
  /// blocks back, and that the device holds no resources.
  void finish() {
    a().close();
    b().close();
    static_cast<Scene&>(*this).drop();
    mine = big = {};
    drain(pair_->io);
    for (unsigned i = 0; i < most; ++i)
      CHECK(ends[i].calls == (started_[i] ? 1 : 0));
    CHECK(disconnect.calls == 1);
    CHECK(count_.outstanding == 0);
    CHECK(pool().statistics().blocks_in_use == 0);
    pair_.reset();
    CHECK(faults.counts().unacknowledged_at_destroy == 0);
  }

  const kind_type& kind;

private:
  std::optional<Pair> pair_;

public:
  faults::injector faults;
  std::uint32_t number; ///< Of the queue pair below `a`.
  std::array<ending, most> ends;
  ending disconnect;                                 ///< The wait for the disconnect.
  std::array<std::vector<std::uint8_t>, most> plain; ///< Not registered.
  std::array<registered_buffer, most> mine, big;     ///< 2048 bytes; `large` bytes.

protected:
  static constexpr std::size_t small = 64, large = 64 * 1024;

  template <class Options>
  link_scene(const kind_type& k, const Options& options)
      : kind(k), pair_(std::in_place, options, options), faults(pair_->dev.native_handle()) {
    number = native()->qp_num;
    for (unsigned i = 0; i < most; ++i) {
      plain[i] = pattern(large, i);
      mine[i] = pool().allocate(2048);
      big[i] = pool().allocate(large);
    }
  }

  static auto few(Scene& s, unsigned i) { return asio::buffer(s.plain[i], small); }
  static auto many(Scene& s, unsigned i) { return asio::buffer(s.plain[i]); }

  Pair& pair() { return *pair_; }
  ending_handler disconnected() { return {&disconnect, &count_}; }

private:
  /// Runs the context until `n` completions of `a` are held back.
  void wait_held(std::size_t n) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (faults.held() < n) {
      turn();
      if (std::chrono::steady_clock::now() > limit)
        throw std::runtime_error("too few completions are held back");
    }
    turn(); // handles the visible completions, and arms the queue
  }
  void turn() {
    pair_->io.restart();
    if (pair_->io.poll() == 0)
      std::this_thread::yield();
  }
  void check_failed(unsigned i, const is_reason& right) {
    INFO(i << ": " << describe(ends[i].ec));
    if (kind.ends == end::reason)
      CHECK(right(ends[i].ec));
    else
      CHECK_FALSE(ends[i].ec);
  }

  allocation_count count_;
  std::array<bool, most> started_{};
};

} // namespace test
