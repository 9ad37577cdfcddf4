// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_DESCRIPTOR_TABLE_HPP
#define SOFT_ENGINE_DESCRIPTOR_TABLE_HPP

#include <atomic>
#include <cstdint>
#include <sys/epoll.h>
#include <unordered_map>

namespace soft {

/// Waits for a file descriptor.
class descriptor {
public:
  /// Called with the engine locked, on the engine's thread or, for a `visited_descriptors`, on a
  /// thread of the program; `events` as of epoll_wait(2).
  virtual void ready(std::uint32_t events) = 0;

protected:
  ~descriptor() = default;
};

/// An epoll instance, and the descriptors that it watches.
class descriptor_table {
public:
  /// The ids below this one are free for the owner of the table.
  static constexpr std::uint64_t first_id = 2;

  descriptor_table() = default;
  ~descriptor_table() { close(); }
  descriptor_table(const descriptor_table&) = delete;
  descriptor_table& operator=(const descriptor_table&) = delete;

  /// Makes the epoll instance, unless it is there. An error number.
  int open();
  /// Closes the epoll instance, which watches no descriptor.
  void close() noexcept;
  /// The descriptor of the epoll instance, or -1. From any thread.
  int fd() const noexcept { return epoll_.load(std::memory_order_acquire); }
  /// From any thread.
  bool is_empty() const noexcept { return size_.load(std::memory_order_relaxed) == 0; }

  // ---- with the engine locked; errors of epoll_ctl(2), as errno
  int watch(int fd, std::uint32_t events, descriptor& d);
  int change(int fd, std::uint32_t events);
  void forget(int fd);
  /// The descriptor, if it is the only one, and watched for nothing but bytes that come; or
  /// nullptr.
  descriptor* only_reader() const noexcept {
    return handlers_.size() == 1 && handlers_.begin()->second.reads ? handlers_.begin()->second.of
                                                                    : nullptr;
  }
  /// Calls the descriptor that `e` is about, unless it was forgotten meanwhile.
  void report(const epoll_event& e);

private:
  std::atomic<int> epoll_{-1};
  std::atomic<unsigned> size_{0};
  std::unordered_map<int, std::uint64_t> ids_; // the id of each descriptor in `handlers_`
  struct handler {
    descriptor* of;
    bool reads; // `only_reader`
  };
  std::unordered_map<std::uint64_t, handler> handlers_;
  std::uint64_t next_id_ = first_id;
};

} // namespace soft

#endif
