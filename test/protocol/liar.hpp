// SPDX-License-Identifier: BSL-1.0
// A world with one honest side, and one that lies: its frames are changed, lost, repeated, sent in
// another order, or invented.
#pragma once

#include "lies.hpp"
#include "simulation.hpp"

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace protocol_test {

struct liar_totals {
  std::size_t steps = 0, worlds = 0, lies = 0, violations = 0, survived = 0, frames = 0;
};

/// Reports the totals. The honest side must have met lies, and survived some of them.
inline void check_lies(const liar_totals& t) {
  WARN(t.steps << " steps in " << t.worlds << " worlds from seed " << simulation::first_seed()
               << ": " << t.frames << " frames of the honest side, " << t.lies << " lies, "
               << t.violations << " worlds that a lie has ended, " << t.survived
               << " that lived on");
  CHECK(t.lies > t.steps / 1000);
  CHECK(t.violations > 0);
  CHECK(t.survived > 0);
}

/// The link between the two sides. The liar is a whole party, so that most of what it says is true
/// and its lies come in any state of the honest side.
template <class Party>
class world_with_liar {
protected:
  world_with_liar(std::uint32_t seed, liar_totals& t)
      : source_(seed), total_(t), lies_(20 + source_.below(200)) {
    ++total_.worlds;
  }
  ~world_with_liar() = default;

  std::uint32_t below(std::uint32_t n) { return source_.below(n); }
  Party& honest() { return *parties_[0]; }
  Party& liar() { return *parties_[1]; }

  /// A frame of the kind's own lies.
  virtual std::vector<std::byte> invented() = 0;

  /// Delivers a frame of the honest side, as far as the liar listens.
  void hear() {
    if (honest().wire.empty())
      return;
    const std::vector<std::byte> frame = std::move(honest().wire.front().bytes);
    honest().wire.pop_front();
    ++total_.frames;
    if (!liar().failure && !liar().posted.empty() &&
        frame.size() <= liar().size_of[liar().posted.front()])
      liar().arrives(frame);
  }
  /// Delivers a frame of the liar, true or not.
  void say() {
    auto& wire = liar().wire;
    if (below(lies_) == 0 || liar().failure)
      return lie();
    if (wire.empty())
      return;
    if (arrives(wire.front().bytes)) {
      said_.push_back(std::move(wire.front().bytes));
      if (said_.size() > 16)
        said_.pop_front();
      wire.pop_front();
    }
  }

  random_lies source_;
  liar_totals& total_;
  std::unique_ptr<Party> parties_[2];
  bool lied_ = false;

private:
  /// False if the device has no receive for the frame: the honest side's device asks for it again.
  bool arrives(const std::vector<std::byte>& frame) {
    if (honest().posted.empty() || frame.size() > honest().size_of[honest().posted.front()])
      return false; // a frame that is too long would end the queue pair
    honest().arrives(frame);
    return true;
  }
  void lie() {
    auto& wire = liar().wire;
    lied_ = true;
    ++total_.lies;
    const std::uint32_t how = below(6);
    if (how == 0 && !said_.empty()) {
      arrives(said_[below(static_cast<std::uint32_t>(said_.size()))]);
    } else if (how == 1 && !wire.empty()) {
      wire.pop_front();
    } else if (how == 2 && wire.size() > 1) {
      std::swap(wire[0], wire[1]);
    } else if (how == 3 && !wire.empty()) {
      arrives(wire.front().bytes); // and once more later
    } else if (how == 4 && !wire.empty()) {
      auto& bytes = wire.front().bytes;
      bytes[below(static_cast<std::uint32_t>(bytes.size()))] ^=
          static_cast<std::byte>(1U << below(8));
    } else {
      arrives(invented());
    }
  }

  const std::uint32_t lies_; // one of so many frames
  std::deque<std::vector<std::byte>> said_;
};

} // namespace protocol_test
