// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cassert>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// An object that gets reports of a device's asynchronous events. It is in the list of an event
/// until the event is acknowledged. A device has one such list at a time.
class heard_object {
protected:
  ~heard_object() = default;

private:
  friend class heard; // it links the objects

  std::shared_ptr<heard_object> next_;
};

/// References to the objects that an event was reported to, kept until the event is acknowledged.
/// Allocates nothing: an event can be read only once, so its report must not fail.
class heard {
public:
  heard() = default;
  heard(const heard&) = delete;
  ~heard() {
    while (first_)
      first_ = std::exchange(first_->next_, nullptr);
  }

  void keep(std::shared_ptr<heard_object> object) noexcept {
    assert(object != nullptr && object.get() != last_);
    heard_object* const added = object.get();
    (last_ == nullptr ? first_ : last_->next_) = std::move(object);
    last_ = added;
  }
  /// Moves all references of `other` here.
  void take(heard& other) noexcept {
    if (!other.first_)
      return;
    keep(std::move(other.first_));
    last_ = std::exchange(other.last_, nullptr);
  }
  template <class Function>
  void for_each(Function f) const noexcept {
    for (heard_object* o = first_.get(); o != nullptr; o = o->next_.get())
      f(*o);
  }

private:
  std::shared_ptr<heard_object> first_;
  heard_object* last_ = nullptr;
};

} // namespace asio_rdma::detail
