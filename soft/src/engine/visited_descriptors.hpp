// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_VISITED_DESCRIPTORS_HPP
#define SOFT_ENGINE_VISITED_DESCRIPTORS_HPP

#include "engine/descriptor_table.hpp"
#include "engine/engine.hpp"

namespace soft {

/// Descriptors that threads of the program serve while they look for completions, so that a message
/// wakes the program and not the engine first. A thread that does so visits the descriptors. The
/// engine serves them, too, unless the last visit was less than `patience` ago.
class visited_descriptors final : private task, private descriptor {
public:
  /// A program that visits more often keeps the engine away.
  static constexpr std::chrono::milliseconds patience{1};

  ~visited_descriptors();

  /// The table for further descriptors; nullptr: the process has no descriptor left. The engine
  /// must be locked.
  descriptor_table* table();
  /// Closes the table if it watches nothing. The engine must be locked.
  void leave();

  // ---- from any thread
  /// The engine serves the descriptors soon: one has more work than a turn may take, or a visitor
  /// has found the engine at work.
  void leave_rest() noexcept;
  // ---- from any thread, without the lock
  /// Whether there is nothing to visit. A child after fork(2) does not visit what its parent has.
  bool is_empty() const noexcept { return table_.is_empty() || !is_here(); }
  /// A descriptor that polls as readable while one of the descriptors is ready; or -1.
  int fd() const noexcept { return is_here() ? table_.fd() : -1; }

  /// The choice of a visitor if the engine, or another thread, is at work.
  enum class if_busy { nothing, schedule, wait };
  /// Serves the descriptors that are ready, in this thread.
  void visit(if_busy other) noexcept;

private:
  bool is_here() const noexcept {
    engine* const e = engine_.load(std::memory_order_relaxed);
    return e != nullptr && e == &engine::get();
  }
  void serve();
  void note_visit();
  void run() override;
  void ready(std::uint32_t events) override;

  descriptor_table table_;
  std::atomic<engine*> engine_{nullptr};
  std::atomic<bool> has_rest_{false}; // `leave_rest`, until `run`
  // ---- guarded by the engine's lock
  bool engine_watches_ = false;
  clock::time_point last_visit_{};
};

} // namespace soft

#endif
