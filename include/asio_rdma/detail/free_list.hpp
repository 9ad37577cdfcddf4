// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <deque>
#include <utility>

namespace asio_rdma::detail {

/// Objects that are made when there is none to be used again, and stay where they are. `next_free`
/// of each leads to the next that is free.
template <class T>
class free_list {
public:
  /// One that was given back, as it is, or else a new one made of the arguments.
  template <class... Args>
  T& take(Args&&... args) {
    if (first_ == nullptr)
      return all_.emplace_back(std::forward<Args>(args)...);
    return *std::exchange(first_, first_->next_free);
  }
  void give_back(T& object) noexcept { object.next_free = std::exchange(first_, &object); }
  /// Those in use and those that are free.
  std::deque<T>& all() noexcept { return all_; }

private:
  std::deque<T> all_;
  T* first_ = nullptr;
};

} // namespace asio_rdma::detail
