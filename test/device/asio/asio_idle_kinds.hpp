// SPDX-License-Identifier: BSL-1.0
// The kinds of operations of asio_idle_threads.cpp.
#pragma once

#include "device/support/pair.hpp"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace test {

/// The number of operations that are started.
constexpr int started_count = 6;

using done = std::function<void()>;

/// A handler that calls `d` if the result is the expected one.
inline auto upon(done d, error_code expected = {}) {
  return [d = std::move(d), expected](error_code ec, const auto&...) {
    if (ec == expected)
      d();
  };
}
inline auto upon_cancellation(done d) { return upon(std::move(d), asio::error::operation_aborted); }

/// Operations of one kind. `complete` makes all started operations complete, in their order.
class operations {
public:
  virtual ~operations() = default;
  virtual void start(done d) = 0;
  virtual void complete() = 0;
};

/// Operations that `complete` starts, because nothing else delays their completion.
class started_late : public operations {
public:
  void start(done d) final { all_.push_back(std::move(d)); }
  void complete() override {
    for (done& d : all_)
      start_now(std::move(d));
  }

private:
  virtual void start_now(done d) = 0;

  std::vector<done> all_;
};

struct kind {
  const char* name;
  std::function<std::unique_ptr<operations>(asio::io_context&)> make;
  bool ordered = true; ///< They complete in the order in which they were started.
};

template <class Operations, class... Args>
auto make(Args... args) {
  return [=](asio::io_context& io) -> std::unique_ptr<operations> {
    return std::make_unique<Operations>(io, args...);
  };
}

/// Asio's own operations, those of queue pairs, and those that wait for something else.
namespace asio_idle_objects {
std::vector<kind> kinds();
}
/// Operations of the connection manager.
namespace asio_idle_manager {
std::vector<kind> kinds();
}
/// Operations of connections and streams.
namespace asio_idle_links {
std::vector<kind> kinds();
}
/// Operations of global memory and locks.
namespace asio_idle_global {
std::vector<kind> kinds();
}

} // namespace test
