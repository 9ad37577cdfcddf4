// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/detail/core/operation_memory.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/require.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>

namespace asio_rdma::detail {

class operation_group;

/// The executor of a handler that is not the plain one of the context.
struct handler_executor {
  /// One object for each type of executors. The functions are null if no object of the type is a
  /// strand.
  struct kind {
    bool (*is_strand)(const handler_executor&) noexcept;
    bool (*equal)(const handler_executor&, const handler_executor&) noexcept;
    void (*post)(const handler_executor&, operation_group&&);
  };
  const kind* type;

  bool is_strand() const noexcept { return type->is_strand != nullptr && type->is_strand(*this); }
  bool is_same_strand(const handler_executor& strand) const noexcept {
    return type == strand.type && type->equal(*this, strand);
  }
};

/// Completed operations whose handlers have one strand. They go to it together, because a call for
/// each costs more than most handlers: an allocation, and the strand's lock.
class operation_group {
public:
  static constexpr std::size_t most = 32;

  /// Moves an operation from a list to the group, and those behind it that have its strand, `most`
  /// in all. Then `next` is behind these, and `number` has grown by their number.
  operation_group(operation_list& from, operation_list::iterator& next,
                  std::size_t& number) noexcept {
    const auto first = next;
    std::size_t n = 0;
    do {
      ++next;
      ++n;
    } while (n != most && next != from.end() && next->executor != nullptr &&
             next->executor->is_same_strand(*first->executor));
    operations_.splice(operations_.end(), from, first, next);
    number += n;
  }
  operation_group(operation_group&& other) noexcept { operations_.swap(other.operations_); }
  operation_group& operator=(operation_group&&) = delete;
  /// Destroys the handlers if they have not been called: the strand has dropped the group.
  ~operation_group() {
    while (!empty())
      dispose_of_first(disposal::destroy);
  }

  bool empty() const noexcept { return operations_.empty(); }
  /// Has the strand call the handlers, in order. The group is empty then.
  void post() {
    const handler_executor& strand = *operations_.front().executor;
    strand.type->post(strand, std::move(*this));
  }
  /// By the strand.
  void call_first() { dispose_of_first(disposal::in_executor); }

private:
  void dispose_of_first(disposal how) {
    operation& op = operations_.front();
    operations_.pop_front();
    op.dispose(how);
  }

  operation_list operations_;
};

/// The call of a group by its strand. A handler that throws changes no order: the others are called
/// first, and then the exception leaves. A further one leaves by a call of its own.
template <class Strand>
class group_call {
public:
  using allocator_type = operation_allocator<void>;

  group_call(const Strand& strand, operation_group&& group)
      : strand_(strand), group_(std::move(group)) {}

  allocator_type get_allocator() const noexcept { return {}; }

  void operator()() {
    std::exception_ptr first;
    while (!group_.empty())
      try {
        group_.call_first();
      } catch (...) {
        if (first == nullptr)
          first = std::current_exception();
        else
          throw_later(std::current_exception());
      }
    if (first != nullptr)
      std::rethrow_exception(first);
  }

private:
  void throw_later(std::exception_ptr e) noexcept {
    try {
      asio::post(strand_, [e = std::move(e)] { std::rethrow_exception(e); });
    } catch (...) {
      // No memory: the first exception stands for this one.
    }
  }

  Strand strand_;
  operation_group group_;
};

template <class Executor>
struct strand_traits {
  static constexpr bool possible = false;
};
template <class Inner>
struct strand_traits<asio::strand<Inner>> {
  static constexpr bool possible =
      asio::can_require_v<asio::strand<Inner>, asio::execution::blocking_t::never_t>;
  static bool is_strand(const asio::strand<Inner>&) noexcept { return true; }
};
/// A strand of another executor than these is not recognised: its handlers go to it one by one.
template <>
struct strand_traits<asio::any_io_executor> {
  static constexpr bool possible = true;
  static bool is_strand(const asio::any_io_executor& ex) noexcept {
    return is_strand_of<asio::io_context::executor_type>(ex) ||
           is_strand_of<asio::any_io_executor>(ex) ||
           is_strand_of<asio::thread_pool::executor_type>(ex);
  }

private:
  template <class Inner>
  static bool is_strand_of(const asio::any_io_executor& ex) noexcept {
    using strand = asio::strand<Inner>;
    using tracked = std::decay_t<decltype(asio::prefer(std::declval<const strand&>(),
                                                       asio::execution::outstanding_work.tracked))>;
    return ex.target<tracked>() != nullptr || ex.target<strand>() != nullptr;
  }
};

/// An executor of this type.
template <class Executor>
struct handler_executor_of : handler_executor {
  explicit handler_executor_of(Executor ex) noexcept
      : handler_executor{&kind_of}, executor(std::move(ex)) {}

  Executor executor;

private:
  using traits = strand_traits<Executor>;

  static const Executor& executor_of(const handler_executor& e) noexcept {
    return static_cast<const handler_executor_of&>(e).executor;
  }
  static constexpr kind make_kind() noexcept {
    if constexpr (traits::possible)
      return {[](const handler_executor& e) noexcept { return traits::is_strand(executor_of(e)); },
              [](const handler_executor& a, const handler_executor& b) noexcept {
                return executor_of(a) == executor_of(b);
              },
              [](const handler_executor& e, operation_group&& group) {
                const Executor strand = executor_of(e); // `e` is in an operation of the group
                asio::post(strand, group_call<Executor>(strand, std::move(group)));
              }};
    else
      return {nullptr, nullptr, nullptr};
  }
  static constexpr kind kind_of = make_kind();
};

} // namespace asio_rdma::detail
