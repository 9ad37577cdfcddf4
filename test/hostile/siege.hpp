// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "catch.hpp"
#include "device/support/child_process.hpp"
#include "hostile/bare_peer.hpp"
#include "hostile/good_clients.hpp"
#include "hostile/report.hpp"
#include "hostile/victim.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>

namespace test {

/// A victim with good clients, around an attack: a test case attacks, and then calls `check`.
class siege {
public:
  siege();

  shared_report& report() noexcept { return report_; }
  /// Waits until the condition holds; fails the test after a minute.
  void until(const std::function<bool()>& condition, const char* what);
  /// Waits until each of the good clients has made further rounds.
  void served(std::uint64_t rounds = 2);
  /// Checks what every attack must leave: memory, the service of good clients, the context's gaps,
  /// and guarded memory. The context may compute this many times as long as usually.
  void check(int more_busy = 1);

private:
  void measure();
  bool lives() { return report_->state == hostile_report::ready && !victim_.has_ended(); }

  /// For many peers, this process and the victim may have as many descriptors as the system
  /// permits.
  struct many_descriptors {
    many_descriptors();
  } permit_;
  shared_report report_;
  child_process victim_{"the victim of hostile peers", victim_variables(report_)};
  std::optional<good_clients> clients_;
  std::uint64_t resident_ = 0, heap_ = 0; // before the attack
};

/// The number of repetitions of an attack: `usual`, or times ASIO_RDMA_HOSTILE, for a run by hand.
std::size_t repetitions(std::size_t usual);
/// Random numbers whose seed is in the test's output. ASIO_RDMA_HOSTILE_SEED replaces it.
std::mt19937 seeded(std::uint32_t seed);

inline std::uint32_t below(std::mt19937& random, std::size_t n) {
  return static_cast<std::uint32_t>(random() % n);
}

/// Connects repeatedly, and each time calls `attack` with a new peer. `attack` returns when the
/// peer has done what it wanted, or when the connection has ended.
template <class Attack>
void repeat(std::size_t times, std::uint32_t port, Attack&& attack) {
  for (std::size_t i = 0; i < times; ++i) {
    bare_peer p(port);
    attack(p, i);
  }
}

} // namespace test
