// SPDX-License-Identifier: BSL-1.0
// The operations on a global memory and their results.
#pragma once

#include <asio_rdma/detail/connection/connection_arguments.hpp>
#include <asio_rdma/detail/connection/connection_face.hpp>
#include <asio_rdma/detail/core/random_delay.hpp>
#include <asio_rdma/detail/global/global_face.hpp>
#include <asio_rdma/detail/queues/initiate.hpp>
#include <asio_rdma/detail/queues/results.hpp>
#include <asio_rdma/remote_word.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associator.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

template <word_value T>
std::uint64_t word_bits(const T& value) noexcept {
  return std::bit_cast<std::uint64_t>(value);
}

/// A read with room for its value, which is zero after an error.
template <class Value>
class value_read_operation : public placed_operation {
public:
  using placed_operation::placed_operation;
  alignas(Value) std::array<std::byte, sizeof(Value)> bytes_read{};
};

template <class Value>
struct value_read {
  using signature = void(error_code, Value);
  static std::tuple<Value> arguments(const value_read_operation<Value>& op) {
    return {std::bit_cast<Value>(op.bytes_read)};
  }
};

/// A write with room for the byte that the following READ returns.
class write_operation : public placed_operation {
public:
  using placed_operation::placed_operation;
  std::byte behind{};
};

inline bool start_write(connection_impl& link, write_operation& op, const remote_buffer& target,
                        const payload& from, bool flushed) {
  std::array<remote_work, 2> chain{work_on(target, IBV_WR_RDMA_WRITE),
                                   work_on(target + (target.size - 1), IBV_WR_RDMA_READ)};
  const payload_of<asio::mutable_buffer> byte(asio::buffer(&op.behind, 1));
  chain[0].local = &from;
  chain[1].local = &byte;
  return start(link, op, {chain.data(), flushed && target.size != 0 ? 2u : 1u});
}

class exchange_operation : public placed_operation {
public:
  using placed_operation::placed_operation;
  std::uint64_t expected = 0;
};

template <class Value>
struct exchanged {
  using signature = void(error_code, exchange_result<Value>);
  static std::tuple<exchange_result<Value>> arguments(const exchange_operation& op) {
    return {{!op.ec && op.value == op.expected, std::bit_cast<Value>(op.value)}};
  }
};

template <class Value>
struct word_found {
  static constexpr const char* name = "async_fetch_add";
  using signature = void(error_code, Value);
  static std::tuple<Value> arguments(const operation& op) {
    return {std::bit_cast<Value>(op.value)};
  }
};

/// The operations of a batch, and as whole words the bytes that they write or read. Exists until
/// all operations have ended.
struct batch_state {
  /// Makes room for one more operation of `more_words` words. Changes nothing else.
  void reserve(std::size_t more_words) {
    make_room(words, more_words);
    make_room(aims, 1);
    make_room(chain, 1);
  }
  /// Resolves the targets at the start, because lanes may have changed since the operations were
  /// added. Returns null with the error if that fails.
  std::shared_ptr<lane_link> aim(const global_memory_impl& memory, error_code& ec) {
    std::shared_ptr<lane_link> result;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      std::shared_ptr<lane_link> l = find(memory, aims[i], chain[i].target, ec);
      if (l != nullptr && result != nullptr && l != result)
        ec = asio::error::connection_reset;
      if (ec)
        return nullptr;
      result = std::move(l);
    }
    return result;
  }
  /// Sets the addresses of the operations' bytes, which no longer move.
  std::span<const remote_work> prepare() {
    std::uint64_t* at = words.data();
    payloads.resize(chain.size());
    for (std::size_t i = 0; i < chain.size(); ++i) {
      remote_work& w = chain[i];
      auto& p = payloads[i].emplace(mutable_buffer(at, w.target.size, 0));
      p.registered = false;
      w.local = &p;
      w.found = at;
      at += (w.target.size + 7) / 8;
    }
    return chain;
  }

  std::vector<global_aim> aims;
  std::vector<remote_work> chain;
  std::vector<std::uint64_t> words;
  std::vector<std::optional<payload_of<mutable_buffer>>> payloads;
  error_code problem;              // the first error while the batch was built
  std::atomic<bool> posted{false}; // until its operation is destroyed, perhaps by another thread

private:
  template <class T>
  static void make_room(std::vector<T>& v, std::size_t more) {
    if (v.capacity() - v.size() < more)
      v.reserve(std::max(v.size() + more, 2 * v.capacity()));
  }
};

class batch_operation : public placed_operation {
public:
  using placed_operation::placed_operation;
  ~batch_operation() {
    if (state_)
      state_->posted = false;
  }
  void keep(std::shared_ptr<batch_state> state) {
    state_ = std::move(state);
    state_->posted = true;
  }
  std::span<const remote_work> chain() { return state_->prepare(); }

private:
  std::shared_ptr<batch_state> state_;
};

// The names that handler tracking shows. Operations on a node's memory that differ only in their
// result have that of the result.
inline const char* object_name(const global_memory_impl*) noexcept { return "global_memory"; }
inline const char* operation_name(const global_memory_impl*, const global_request& op) noexcept {
  if (op.is_join())
    return "async_join";
  return op.message.what == global_message::kind::allocate ? "async_allocate" : "async_free";
}
inline const char* operation_name(const lane_link*, const placed_operation&) noexcept {
  return "async_transfer"; // into or from the caller's buffers
}
template <class Value>
const char* operation_name(const lane_link*, const value_read_operation<Value>&) noexcept {
  return "async_read";
}
inline const char* operation_name(const lane_link*, const write_operation&) noexcept {
  return "async_write";
}
inline const char* operation_name(const lane_link*, const exchange_operation&) noexcept {
  return "async_compare_exchange";
}
inline const char* operation_name(const lane_link*, const batch_operation&) noexcept {
  return "async_post";
}

struct node_result {
  using signature = void(error_code, node_id);
  static std::tuple<node_id> arguments(const global_request& op) {
    return {op.ec ? node_id(0) : op.message.node};
  }
};

template <class T>
struct pointer_result {
  using signature = void(error_code, remote_ptr<T>);
  static std::tuple<remote_ptr<T>> arguments(const global_request& op) {
    if (op.ec)
      return {remote_ptr<T>()};
    return {remote_ptr<T>(op.message.node, op.message.segment, op.message.value)};
  }
};

/// A random delay whose limit doubles with each failure, so that competing operations separate.
class back_off {
public:
  template <class Executor>
  explicit back_off(const Executor& ex) : timer_(ex) {}

  template <class Handler>
  void async_wait(Handler&& handler) {
    limit_ = std::min<std::uint32_t>(2 * limit_, 1000);
    timer_.expires_after(delay_(limit_));
    timer_.async_wait(std::forward<Handler>(handler));
  }

private:
  asio::steady_timer timer_;
  random_delay delay_;
  std::uint32_t limit_ = 1; // microseconds
};

template <class Attempt, class Handler>
class retrying;

/// The handler of each step of a `retrying` operation. It has the executor and the allocator of the
/// operation's handler.
template <class Attempt, class Handler>
class retrying_step {
public:
  using operation = retrying<Attempt, Handler>;
  using cancellation_slot_type = asio::cancellation_slot;

  explicit retrying_step(std::shared_ptr<operation> of) noexcept : of_(std::move(of)) {}
  // A move copies: after an exception, Asio asks a handler that it has moved from for its
  // allocator.
  retrying_step(const retrying_step&) noexcept = default;

  cancellation_slot_type get_cancellation_slot() const noexcept { return of_->cancelled_.slot(); }
  const Handler& handler() const noexcept { return *of_->handler_; }

  template <class... Results>
  void operator()(const error_code& ec, const Results&... results) {
    operation::go_on(std::move(of_), ec, results...);
  }

private:
  std::shared_ptr<operation> of_;
};

/// A composed operation that is retried until it succeeds. If there is no memory for a step, the
/// operation completes with `no_memory`. Therefore its handler is not moved into the steps: an
/// initiating function that throws destroys the handler that it was given.
///
/// `Attempt` is the operation to be retried, on `memory()`. `start(step, first)` starts an attempt,
/// `succeeded(result)` returns whether it was the last one, and `arguments(ec)` returns the
/// handler's arguments after the error code.
template <class Attempt, class Handler>
class retrying {
public:
  using step = retrying_step<Attempt, Handler>;

  /// Takes the handler only if the construction succeeds.
  retrying(const Attempt& what, Handler& handler)
      : attempt_(what),
        back_off_(what.memory().get_executor()),
        cancelled_(asio::get_associated_cancellation_slot(handler),
                   asio::enable_total_cancellation()),
        handler_(std::move(handler)) {}

  /// Throws if there is no memory for the first step.
  static void begin(const Attempt& what, Handler& handler) {
    auto op = std::allocate_shared<retrying>(operation_allocator<retrying>(), what, handler);
    Attempt& a = op->attempt_;
    a.start(step(std::move(op)), true);
  }

private:
  friend step; // it calls `go_on`
  using pointer = std::shared_ptr<retrying>;

  /// Called after a pause.
  static void go_on(pointer op, error_code ec) {
    if (!ec && op->cancelled_.cancelled() != asio::cancellation_type::none)
      ec = asio::error::operation_aborted; // cancelled when the previous attempt had just completed
    if (ec)
      complete(std::move(op), ec);
    else
      next(std::move(op), [](retrying& o, step s) { o.attempt_.start(std::move(s), false); });
  }
  /// Called after an attempt.
  template <class Result>
  static void go_on(pointer op, const error_code& ec, const Result& result) {
    if (ec || op->attempt_.succeeded(result))
      complete(std::move(op), ec);
    else
      next(std::move(op), [](retrying& o, step s) { o.back_off_->async_wait(std::move(s)); });
  }

  // Once `start` has started a step, another thread may complete the operation.
  template <class Start>
  static void next(pointer op, Start start) {
    op->cancelled_.slot().clear();
    try {
      start(*op, step(op));
      return;
    } catch (const std::bad_alloc&) {
      if (!op->handler_) // the handler was called and has thrown
        throw;
    }
    complete(std::move(op), asio::error::no_memory);
  }

  // Only the operation's memory may outlast the call of the handler: see `next`.
  static void complete(pointer op, const error_code& ec) {
    op->cancelled_.slot().clear();
    auto arguments = op->attempt_.arguments(ec);
    Handler handler(std::move(*op->handler_));
    op->handler_.reset();
    op->back_off_.reset();
    op.reset();
    std::apply([&](auto&... args) { std::move(handler)(ec, std::move(args)...); }, arguments);
  }

  Attempt attempt_;
  std::optional<back_off> back_off_;
  asio::cancellation_state cancelled_;
  std::optional<Handler> handler_; // empty once it is called
};

/// The initiation of a `retrying` operation.
template <class Memory>
struct initiate_retrying : initiation<Memory> {
  template <class Handler, class Attempt>
  void operator()(Handler&& handler, const Attempt& what) const {
    std::decay_t<Handler> h(std::forward<Handler>(handler));
    retrying<Attempt, std::decay_t<Handler>>::begin(what, h);
  }
};

/// A compare-and-exchange that is retried until it succeeds.
template <class Memory, class T>
class exchange_attempt {
  using value = remote_value_t<T>;

public:
  exchange_attempt(Memory& memory, remote_ptr<T> at, value desired)
      : memory_(&memory), at_(at), desired_(desired) {}

  Memory& memory() const noexcept { return *memory_; }
  template <class Step>
  void start(Step&& next, bool) {
    memory_->async_compare_exchange(at_, seen_, desired_, std::forward<Step>(next));
  }
  bool succeeded(const exchange_result<value>& result) {
    seen_ = result.seen;
    return result.exchanged;
  }
  std::tuple<value> arguments(const error_code& ec) const { return {ec ? zero() : seen_}; }

private:
  static value zero() { return std::bit_cast<value>(std::uint64_t(0)); }

  Memory* memory_;
  remote_ptr<T> at_;
  value seen_ = zero(), desired_;
};

} // namespace asio_rdma::detail

namespace boost::asio {

template <template <class, class> class Associator, class Attempt, class Handler, class Default>
struct associator<Associator, asio_rdma::detail::retrying_step<Attempt, Handler>, Default>
    : Associator<Handler, Default> {
  using step = asio_rdma::detail::retrying_step<Attempt, Handler>;

  static auto get(const step& s) noexcept { return Associator<Handler, Default>::get(s.handler()); }
  static auto get(const step& s, const Default& d) noexcept {
    return Associator<Handler, Default>::get(s.handler(), d);
  }
};

} // namespace boost::asio
#pragma GCC visibility pop
