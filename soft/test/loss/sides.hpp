// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_LOSS_SIDES_HPP
#define SOFT_TEST_LOSS_SIDES_HPP

#include "party.hpp"
#include "support/processes.hpp"

#include <functional>
#include <string>

namespace soft::test {

using part = std::function<void(party&)>;

/// The side that listens, in a process of its own.
class listening_side {
public:
  listening_side();
  ~listening_side();
  listening_side(const listening_side&) = delete;
  listening_side& operator=(const listening_side&) = delete;

  /// Plays a scene with the next connection.
  /// @param comes  whether the connection lasts until its request has come
  void play(const scene& s, const part& p, bool comes = true);

private:
  owned_events events_;
  rdma_cm_id* id_ = nullptr;
};

/// The side that connects, and the process of the other one.
class connecting_side {
public:
  /// `listening`: the hidden test case that has the `listening_side`.
  explicit connecting_side(const std::string& listening);

  /// The port of the other side.
  const std::string& port() const noexcept { return port_; }
  /// To the other process.
  int channel() const noexcept { return other_.channel(); }
  struct reports {
    report own, other;
  };
  /// Plays a scene. `ended` is called before the end of the other side is waited for.
  /// @param port  where to connect
  reports play(const scene& s, const std::string& port, const part& p,
               const std::function<void()>& ended = {});
  /// Waits for the end of the other process.
  int wait() { return other_.wait(); }

private:
  rdma_cm_id* id_to(const std::string& port);

  child other_;
  owned_events events_;
  std::string port_;
};

/// The first thing that must not be in the reports of a scene, or nothing.
std::string fault_of(const connecting_side::reports& r);
/// The same of a scene whose connection was not lost.
std::string fault_of_whole(const scene& s, const connecting_side::reports& r);

} // namespace soft::test

#endif
