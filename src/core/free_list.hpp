// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <deque>
#include <utility>

namespace asio_rdma::detail {

/// A pool of objects with stable addresses. A new object is made only if none is free. `next_free`
/// links the free objects.
template <class T>
class free_list {
public:
  /// Returns a free object unchanged, or a new one constructed from the arguments.
  template <class... Args>
  T& take(Args&&... args) {
    if (first_ == nullptr)
      return all_.emplace_back(std::forward<Args>(args)...);
    return *std::exchange(first_, first_->next_free);
  }
  void give_back(T& object) noexcept { object.next_free = std::exchange(first_, &object); }
  /// All objects, in use or free.
  std::deque<T>& all() noexcept { return all_; }

private:
  std::deque<T> all_;
  T* first_ = nullptr;
};

} // namespace asio_rdma::detail
