// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cassert>
#include <memory>
#include <utility>

namespace asio_rdma::detail {

/// An object that gets reports of a device's asynchronous events. It is in the list of an event
/// until the event is acknowledged. A device has one such list at a time.
class notified_object {
protected:
  ~notified_object() = default;

private:
  friend class notified_objects; // it links the objects

  std::shared_ptr<notified_object> next_;
};

/// References to the objects that an event was reported to, kept until the event is acknowledged.
/// Allocates nothing: an event can be read only once, so its report must not fail.
class notified_objects {
public:
  notified_objects() = default;
  notified_objects(const notified_objects&) = delete;
  ~notified_objects() {
    while (first_)
      first_ = std::exchange(first_->next_, nullptr);
  }

  void keep(std::shared_ptr<notified_object> object) noexcept {
    assert(object != nullptr && object.get() != last_);
    notified_object* const added = object.get();
    (last_ == nullptr ? first_ : last_->next_) = std::move(object);
    last_ = added;
  }
  /// Moves all references of `other` here.
  void take(notified_objects& other) noexcept {
    if (!other.first_)
      return;
    keep(std::move(other.first_));
    last_ = std::exchange(other.last_, nullptr);
  }
  template <class Function>
  void for_each(Function f) const noexcept {
    for (notified_object* o = first_.get(); o != nullptr; o = o->next_.get())
      f(*o);
  }

private:
  std::shared_ptr<notified_object> first_;
  notified_object* last_ = nullptr;
};

} // namespace asio_rdma::detail
