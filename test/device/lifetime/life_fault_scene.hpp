// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/support/ending.hpp"
#include "interposer/faults.hpp"

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace test {

class scene;

/// One kind of operation, started at the scene's `actor`.
struct operation_kind {
  const char* name;
  bool (*offered)(const device&);
  void (*start)(scene&, unsigned i, ending_handler);
  faults::call post = faults::call::post_send;
  bool takes_receive = false; // uses one of the peer's receives
  enum class keys { none, unbound_here, bound_here, bound_at_peer } windows = keys::none;

  bool receives() const { return post != faults::call::post_send; }
  bool is_shared() const { return post == faults::call::post_srq_recv; }
};

/// Calls `f` with each kind of operation that the device offers.
void each_operation(const std::function<void(const operation_kind&)>& f);

/// Two connected queue pairs with their own completion queues, all that the operations of a kind
/// need to succeed, and an injector.
class scene {
public:
  static constexpr unsigned most = 3;

  explicit scene(const operation_kind& kind);
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;

  /// Starts the operation with this index. A receive stays pending until `feed`.
  void start(unsigned i);
  /// Starts `n` operations as one chain. Not for a shared receive queue, which has no batches.
  void start_chain(unsigned n);
  /// Sends the messages that `n` receives wait for.
  void feed(unsigned n);
  void wait(unsigned first, unsigned n);
  /// Runs the context until `n` completions of the actor are held back.
  void wait_held(unsigned n);
  void hold() { faults.hold_completions({nullptr, number}); }
  /// Starts the first operation; its completion is held back.
  void start_held();
  /// Closes and destroys all objects. Checks that every started operation has ended once and that
  /// nothing is left of it.
  void finish();

  bool is_iwarp() const { return dev.type() == transport::iwarp; }
  std::uint32_t key(unsigned i) const;

  const operation_kind& kind;
  asio::io_context io{1};
  device dev = open_device();
  faults::injector faults{dev.native_handle()};
  protection_domain pd{dev};
  memory here{pd, 4096, most_rights(dev)}, there{pd, 4096, most_rights(dev)};
  completion_queue cq{io, dev}, cq_of_peer{io, dev};
  std::optional<shared_receive_queue> srq;
  std::optional<queue_pair> actor{io}, peer{io};
  std::vector<memory_window> windows;
  std::uint32_t number = 0; // of the actor
  std::array<ending, most> ends;
  ending disconnect;

private:
  ending_handler handler(ending& e) { return {&e, &count_}; }
  void prepare();

  allocation_count count_;
  std::array<bool, most> started_{};
};

} // namespace test
