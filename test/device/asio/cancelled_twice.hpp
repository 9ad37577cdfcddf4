// SPDX-License-Identifier: BSL-1.0
// Operations that are cancelled twice by each pair of types: the parts that the tests share.
#pragma once

#include "catch.hpp"
#include "device/support/pair.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <array>
#include <functional>
#include <vector>

namespace test {

using asio::cancellation_type;

inline constexpr std::array types{cancellation_type::terminal, cancellation_type::partial,
                                  cancellation_type::total};

/// The effect of a cancellation on an operation.
enum class fate {
  taken_back,     ///< Not begun: any type ends it at once.
  let_go,         ///< It may happen. It ends at once, except by `total`.
  left_alone,     ///< It continues after any type.
  ends_connection ///< It continues, but `terminal` ends all operations.
};

/// Two cancellations of one operation.
struct twice {
  cancellation_type first, second;
  asio::cancellation_signal signal = {};
  int calls = 0;
  error_code ec = {};
  memory_window window = {}; ///< For operations that need one.

  bool has(cancellation_type t) const { return first == t || second == t; }
  bool only(cancellation_type t) const { return first == t && second == t; }
  bool ends(fate f) const {
    return f == fate::taken_back || (f == fate::let_go && !only(cancellation_type::total));
  }
  bool breaks(fate f) const {
    return f == fate::ends_connection && has(cancellation_type::terminal);
  }
  error_code expected(fate f) const {
    return ends(f) ? error_code(asio::error::operation_aborted) : error_code();
  }
  auto handler() {
    return asio::bind_cancellation_slot(signal.slot(), [this](error_code e, auto&&...) {
      ++calls;
      ec = e;
    });
  }
  void cancel() {
    signal.emit(first);
    signal.emit(second);
  }
};

template <class Function>
void each_pair(Function&& f) {
  for (const auto first : types)
    for (const auto second : types) {
      INFO("first " << static_cast<unsigned>(first) << ", second "
                    << static_cast<unsigned>(second));
      twice c{first, second};
      f(c);
    }
}

/// An operation on a scene, and the effect of two cancellations.
template <class Scene>
struct subject {
  const char* name;
  fate becomes;
  std::function<void(Scene&, twice&)> start;
};

/// Starts each operation on a new scene, cancels it twice, and checks its end. An operation that
/// ends must do so before `Scene::proceed`, which completes everything else, and checks that
/// nothing was disturbed. Its argument is whether the cancellations end the connection.
template <class Scene>
void check_on(const std::vector<subject<Scene>>& all) {
  for (const subject<Scene>& s : all)
    each_pair([&](twice& c) {
      INFO(s.name);
      Scene t;
      s.start(t, c);
      c.cancel();
      CHECK(c.calls == 0); // not from inside the cancellation
      const bool broken = c.breaks(s.becomes);
      if (broken || c.ends(s.becomes))
        t.until([&] { return c.calls != 0; });
      t.proceed(broken);
      t.until([&] { return c.calls != 0; });
      CHECK(c.calls == 1);
      if (broken)
        CHECK((!c.ec || c.ec == asio::error::operation_aborted));
      else
        CHECK(c.ec == c.expected(s.becomes));
    });
}

} // namespace test
