// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/core/operation_memory.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/strand.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace asio_rdma::detail {

class operation_group;

/// The executor of a handler that is not the plain one of the context.
struct handler_executor {
  /// One object for each type of executors.
  struct kind {
    bool (*is_strand)(const handler_executor&) noexcept;
    bool (*equal)(const handler_executor&, const handler_executor&) noexcept;
    void (*post)(const handler_executor&, operation_group&&);
  };
  const kind* type;

  bool is_strand() const noexcept { return type->is_strand(*this); }
  friend bool operator==(const handler_executor& a, const handler_executor& b) noexcept {
    return a.type == b.type && a.type->equal(a, b);
  }
};

/// Completed operations whose handlers have one strand. They go to it together, because a call for
/// each costs more than most handlers: an allocation, and the strand's lock.
class operation_group {
public:
  /// Moves an operation from a list to the group, and those behind it that have its strand. Then
  /// `next` is behind these, and `number` has grown by their number.
  operation_group(operation_list& from, operation_list::iterator& next,
                  std::size_t& number) noexcept {
    const auto first = next;
    do {
      ++next;
      ++number;
    } while (next != from.end() && next->executor != nullptr &&
             *next->executor == *first->executor);
    operations_.splice(operations_.end(), from, first, next);
  }
  operation_group(operation_group&& other) noexcept { operations_.swap(other.operations_); }
  operation_group& operator=(operation_group&&) = delete;
  /// Destroys the handlers if they have not been called: the strand has dropped the group.
  ~operation_group() { dispose(disposal::destroy); }

  /// Calls the handlers by their strand, in order. The group is empty then.
  void post() {
    const handler_executor& strand = *operations_.front().executor;
    strand.type->post(strand, std::move(*this));
  }

  /// Calls the handlers. The strand calls this.
  void operator()() {
    try {
      dispose(disposal::in_executor);
    } catch (...) {
      if (!operations_.empty())
        post();
      throw;
    }
  }

  using allocator_type = operation_allocator<void>;
  allocator_type get_allocator() const noexcept { return {}; }

private:
  void dispose(disposal how) {
    while (!operations_.empty()) {
      operation& op = operations_.front();
      operations_.pop_front();
      op.dispose(how);
    }
  }

  operation_list operations_;
};

template <class Executor>
bool is_strand(const Executor&) noexcept {
  return false;
}
template <class Inner>
bool is_strand(const asio::strand<Inner>&) noexcept {
  return true;
}
template <class Inner>
bool is_strand_of(const asio::any_io_executor& ex) noexcept {
  using strand = asio::strand<Inner>;
  using tracked = std::decay_t<decltype(asio::prefer(std::declval<const strand&>(),
                                                     asio::execution::outstanding_work.tracked))>;
  return ex.target<tracked>() != nullptr || ex.target<strand>() != nullptr;
}
/// Other strands within this type are not found. Their handlers go to them one by one.
inline bool is_strand(const asio::any_io_executor& ex) noexcept {
  return is_strand_of<asio::io_context::executor_type>(ex) ||
         is_strand_of<asio::any_io_executor>(ex);
}

/// An executor of this type.
template <class Executor>
struct handler_executor_of : handler_executor {
  explicit handler_executor_of(Executor ex) noexcept
      : handler_executor{&kind_of}, executor(std::move(ex)) {}

  Executor executor;

private:
  static const Executor& executor_of(const handler_executor& e) noexcept {
    return static_cast<const handler_executor_of&>(e).executor;
  }
  static bool is_strand(const handler_executor& e) noexcept {
    return detail::is_strand(executor_of(e));
  }
  static bool equal(const handler_executor& a, const handler_executor& b) noexcept {
    return executor_of(a) == executor_of(b);
  }
  // The executor is copied: it is in an operation of the group.
  static void post(const handler_executor& e, operation_group&& group) {
    const Executor copy = executor_of(e);
    asio::post(copy, std::move(group));
  }
  static constexpr kind kind_of{&is_strand, &equal, &post};
};

} // namespace asio_rdma::detail
