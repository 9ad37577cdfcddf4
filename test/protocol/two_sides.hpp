// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "fake_link.hpp"

#include <memory>
#include <random>

namespace protocol_test {

/// The world of a simulation: two parties whose link loses nothing but has any delay.
template <class Party>
class two_sides {
protected:
  explicit two_sides(std::uint32_t seed) : random_(seed) {}
  ~two_sides() = default;

  std::uint32_t below(std::uint32_t n) {
    return n == 0 ? 0 : static_cast<std::uint32_t>(random_() % n);
  }

  virtual bool deliver(std::size_t from) { return parties_[from]->deliver_to(*parties_[1 - from]); }
  /// Completes an action that is neither a frame nor a SEND. Returns false if there is none.
  virtual bool local_step(std::size_t who) = 0;
  virtual void check() {
    for (std::size_t i = 0; i < 2; ++i)
      parties_[i]->check(*parties_[1 - i]);
  }

  /// Runs everything except the applications. Returns whether anything moved.
  bool settle() {
    bool moved = false;
    for (bool again = true; again;) {
      again = false;
      for (std::size_t i = 0; i < 2; ++i) {
        again |= deliver(i);
        again |= parties_[i]->complete_send();
        again |= local_step(i);
      }
      moved |= again;
      check();
      must(++settled_ < 1'000'000, "two parties become idle");
    }
    return moved;
  }

  std::unique_ptr<Party> parties_[2];

private:
  std::mt19937 random_;
  std::size_t settled_ = 0;
};

} // namespace protocol_test
