// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/support/pair.hpp"

#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/require.hpp>

#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace test {

/// The device, protection domain and memory of tests that make their own queue pairs.
struct ground {
  device dev = open_device();
  protection_domain pd{dev};
  memory mem{pd, 64 * 1024, most_rights(dev)};

  mutable_buffer part(std::size_t n, std::size_t bytes = 64) const {
    return mem.buffer(n * 1024, bytes);
  }
  remote_buffer remote_part(std::size_t n, std::size_t bytes = 64) const {
    return mem.remote(n * 1024, bytes);
  }
};

inline completion_queue_options in_mode(completion_mode mode) {
  completion_queue_options options;
  options.mode = mode;
  return options;
}

/// The modes in which completions need no call of the user.
inline constexpr completion_mode running_modes[] = {
    completion_mode::event, completion_mode::adaptive, completion_mode::busy};

/// Runs the context by `n` threads, until all have returned.
inline void run_by_threads(asio::io_context& io, int n) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&io] { io.run(); });
  for (std::thread& t : threads)
    t.join();
}

/// Two connected queue pairs of any executor or context. The context is not run to connect them.
template <class Executor>
struct linked {
  template <class ExecutorOrContext>
  linked(ExecutorOrContext&& ex, const ground& g, const queue_pair_options& options = {})
      : a(ex, g.pd, options), b(ex, g.pd, options) {
    connect(manager, a, b);
  }
  asio::io_context manager{1}; // the context of connections that cannot be made by hand
  basic_queue_pair<Executor> a, b;
};

/// Two connected queue pairs of a context that no thread runs yet, on any device.
struct joined {
  joined(asio::io_context& io, const ground& g, const queue_pair_options& options = {})
      : joined(io, g, completion_queue(), options) {}
  joined(asio::io_context& io, const ground& g, const completion_queue& queue,
         const queue_pair_options& options = {})
      : a(io), b(io) {
    a.open(g.pd, queue, options);
    b.open(g.pd, queue, options);
    connect(io, a, b);
    io.restart();
  }
  queue_pair a, b;
};

/// An executor that runs functions as the context's own executor does and records each call.
class recording_executor {
public:
  struct record {
    int executed = 0;
    int running = 0; // functions of this executor that a thread runs now
  };

  recording_executor(asio::io_context& io, record& r) noexcept : io_(&io), record_(&r) {}

  asio::io_context& query(asio::execution::context_t) const noexcept { return *io_; }
  recording_executor require(asio::execution::blocking_t::never_t) const noexcept {
    recording_executor result(*this);
    result.may_block_ = false;
    return result;
  }

  template <class Function>
  void execute(Function f) const {
    ++record_->executed;
    auto g = [r = record_, f = std::move(f)]() mutable {
      struct scope {
        explicit scope(int& n) : count(n) { ++count; }
        ~scope() { --count; }
        int& count;
      } running(r->running);
      f();
    };
    if (may_block_)
      io_->get_executor().execute(std::move(g));
    else
      asio::require(io_->get_executor(), asio::execution::blocking.never).execute(std::move(g));
  }

  friend bool operator==(const recording_executor&, const recording_executor&) = default;

private:
  asio::io_context* io_;
  record* record_;
  bool may_block_ = true;
};

/// Counts the memory that was allocated and not returned.
struct allocation_count {
  std::size_t allocations = 0;
  std::size_t outstanding = 0; // bytes
};

template <class T>
class counting_allocator {
public:
  using value_type = T;

  explicit counting_allocator(allocation_count& c) noexcept : count_(&c) {}
  template <class U>
  counting_allocator(const counting_allocator<U>& other) noexcept : count_(&other.count()) {}

  T* allocate(std::size_t n) {
    ++count_->allocations;
    count_->outstanding += n * sizeof(T);
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, std::size_t n) {
    count_->outstanding -= n * sizeof(T);
    std::allocator<T>().deallocate(p, n);
  }
  allocation_count& count() const noexcept { return *count_; }

  template <class U>
  friend bool operator==(const counting_allocator& a, const counting_allocator<U>& b) noexcept {
    return &a.count() == &b.count();
  }

private:
  allocation_count* count_;
};

} // namespace test
