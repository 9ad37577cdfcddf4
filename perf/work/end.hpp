// SPDX-License-Identifier: BSL-1.0
// An end of the connection that a measurement uses.
#pragma once

#include "../control.hpp"
#include "../request.hpp"
#include "../side.hpp"

#include <boost/asio/steady_timer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace perf {

/// The far side's answer to a request: where it listens, and up to three numbers whose meaning
/// depends on the kind.
struct offer {
  tcp::endpoint where;
  std::array<std::uint64_t, 3> numbers{};
};
std::string to_text(const offer& o);
/// Throws `session_error`.
offer parse_offer(const std::string& text);

/// Is notified by an end.
class listener {
public:
  virtual void completed() {} ///< Near: an operation, or a round trip, has completed.
  virtual void changed() {} ///< Near: there may be room for another operation. Far: bytes arrived.
  virtual void failed(const error_code& ec) = 0; ///< At most once.

protected:
  ~listener() = default;
};

/// Counts the handlers that refer to the object, which must not be destroyed before `close`.
class end {
public:
  explicit end(asio::io_context& io) : idle_(io, asio::steady_timer::time_point::max()) {}
  end(const end&) = delete;
  virtual ~end() = default;

  void listen(listener* to);
  /// Closes the connection, and waits for its handlers.
  awaitable<void> close();
  /// Empty unless the connection has failed.
  const error_code& error() const noexcept { return error_; }

protected:
  /// A handler that calls `f` with its arguments but the error, unless there is an error.
  template <class F>
  auto counted(F f) {
    ++handlers_;
    return [this, f = std::move(f)](const error_code& ec, auto&&... values) mutable {
      --handlers_;
      if (closed_) {
        if (handlers_ == 0)
          idle_.cancel();
      } else if (ec) {
        fail(ec);
      } else {
        f(std::forward<decltype(values)>(values)...);
      }
    };
  }
  void completed() {
    if (to_ != nullptr)
      to_->completed();
  }
  void changed() {
    if (to_ != nullptr)
      to_->changed();
  }
  void fail(const error_code& ec);
  /// Closes the I/O objects.
  virtual void stop() = 0;

private:
  asio::steady_timer idle_;
  listener* to_ = nullptr;
  std::size_t handlers_ = 0;
  bool closed_ = false;
  error_code error_;
};

/// The end that measures.
class near_end : public end {
public:
  using end::end;

  virtual awaitable<void> connect(const offer& to) = 0;
  /// Whether the peer has room for another operation of the window.
  virtual bool can_start() const { return true; }
  /// Starts an operation, or a round trip.
  virtual void start() = 0;
  /// Waits until the operations that have completed have taken effect at the peer, as far as only
  /// the device knows.
  virtual awaitable<void> settle() { co_return; }
};

/// The end that answers, or receives.
class far_end : public end {
public:
  using end::end;

  virtual offer listening() const = 0;
  virtual awaitable<void> accept() = 0;
  /// Bytes that have arrived.
  std::uint64_t arrived() const noexcept { return arrived_; }

protected:
  void add_arrived(std::uint64_t bytes) {
    arrived_ += bytes;
    changed();
  }

private:
  std::uint64_t arrived_ = 0;
};

/// Each opens the I/O object and registers its memory. Throws `system_error`, or
/// `std::runtime_error` if the device cannot do it.
std::unique_ptr<near_end> make_near_end(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<far_end> make_far_end(const side& s, const request& r, const memory_limits& m);

/// The same for some kinds.
///@{
std::unique_ptr<near_end> near_send(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<far_end> far_send(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<near_end> near_one_sided(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<far_end> far_one_sided(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<near_end> near_messages(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<far_end> far_messages(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<near_end> near_bytes(const side& s, const request& r, const memory_limits& m);
std::unique_ptr<far_end> far_bytes(const side& s, const request& r, const memory_limits& m);
///@}

} // namespace perf
