// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/buffer_access.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/memory_region.hpp>
#include <boost/intrusive/list.hpp>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <new>
#include <tuple>
#include <utility>

namespace asio_rdma::detail {

/// Calls the verb that destroys an object. Returns 0 if the device no longer uses the object, or
/// else the errno value. After the removal of the device the verb returns EIO (rdma-core,
/// libibverbs/cmd_write.h), at first before the kernel has destroyed the object. Once it has,
/// memory of the provider is lost, but the object has no use.
template <class Object>
int end_use(const device& d, int (*destroy)(Object*), Object* object) noexcept {
  const int result = destroy(object);
  return result == EIO && d.is_removed_soon() ? 0 : result;
}

/// An object that the device may still use because the call that ends its use has failed. It is not
/// reused until `release_withheld` repeats the call with success, or until the process ends.
class withheld : public boost::intrusive::list_base_hook<
                     boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  withheld() = default;
  withheld(const withheld&) = delete;
  virtual ~withheld() = default;
  /// Repeats the call. Returns true if the device no longer uses the object.
  virtual bool release() noexcept = 0;
};

/// Takes an object over and never destroys it. An access never ends.
template <class T>
void leak(T object) noexcept {
  alignas(T) std::byte place[sizeof(T)];
  ::new (static_cast<void*>(place)) T(std::move(object));
}

/// Thread-safe, under any lock: releases nothing and allocates nothing.
void withhold(std::unique_ptr<withheld> w) noexcept;

/// A registration or another key, with the objects that it needs, such as its memory.
template <class Key, class... Kept>
class withheld_key final : public withheld {
public:
  explicit withheld_key(Key key, Kept... kept) noexcept
      : kept_(std::move(kept)...), key_(std::move(key)) {}

  bool release() noexcept override {
    error_code ec;
    key_.close(ec);
    return !ec;
  }

private:
  std::tuple<Kept...> kept_;
  Key key_;
};

/// Withholds a key. If there is no memory for that, neither the key nor the objects are ever
/// destroyed, and the call is not repeated.
template <class Key, class... Kept>
void withhold_key(Key key, Kept... kept) noexcept {
  using held = withheld_key<Key, Kept...>;
  void* const place = ::operator new(sizeof(held), std::nothrow);
  if (place == nullptr) {
    leak(std::move(key));
    (leak(std::move(kept)), ...);
    return;
  }
  auto* const w = ::new (place) held(std::move(key), std::move(kept)...);
  withhold(std::unique_ptr<withheld>(w));
}

/// Repeats the calls of all withheld objects. Call with no mutex locked, because it may destroy
/// queue pairs.
void release_withheld() noexcept;

} // namespace asio_rdma::detail
