// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/link/offered.hpp>
#include <asio_rdma/registered_buffer.hpp>

#include "link/link_transfer.hpp"
#include "verbs/grant_key.hpp"

#include <cstddef>
#include <memory>

namespace asio_rdma::detail {

/// A key by which the peer reads offered memory. A link reuses its keys.
///
/// Memory of the link's pool is already registered. If the device confines windows, the key is that
/// of a window: the link posts its bind before the offer, and its invalidation after the answer.
/// Otherwise the memory is registered for the offer alone.
class offer_key {
public:
  explicit offer_key(link_impl& link) noexcept;
  offer_key(const offer_key&) = delete;
  ~offer_key();

  /// Opens the key for the memory of `user`. Errors: those of `register_view`, or the reason why
  /// the link has failed.
  error_code open(offered& user, const const_buffer& memory);
  /// Ends the key of a window: posts its invalidation or, if the link has failed, awaits the end of
  /// the bind. After that `link_impl::offer_ended` is called. Returns false if there is nothing to
  /// await: then the key is still open, and may be closed at once.
  bool invalidate();
  /// From now on the key belongs to no operation. It keeps the memory until it has ended.
  void drop(const registered_buffer& memory) noexcept;

  bool is_open() const noexcept { return key_.is_open(); }
  /// Whether `invalidate` has returned true.
  bool is_ending() const noexcept { return ending_; }
  /// Null if the key was dropped.
  offered* user() const noexcept { return user_; }
  registered_buffer& memory() noexcept { return memory_; }
  remote_buffer remote() const noexcept { return key_.remote(); }
  /// Whether the memory was registered for this key.
  bool is_registration() const noexcept { return key_.is_open() && !key_.window(); }
  /// The key itself, to be closed.
  grant_key& key() noexcept { return key_; }

  offer_key* next_free = nullptr;

private:
  bool has_window();
  void on_bound(operation_list& done);
  void on_invalidated(const error_code& ec, operation_list& done);

  /// The bind or the invalidation of a window.
  class request final : public link_transfer {
  public:
    request(link_impl& link, offer_key& of, done_function done) noexcept
        : link_transfer(link, done), key(of) {}
    offer_key& key;
  };

  link_impl& link_;
  offered* user_ = nullptr;
  grant_key key_;
  std::shared_ptr<memory_window_impl> window_; // kept for the next offer
  registered_buffer memory_;                   // of a dropped key
  request bind_, invalidation_;
  bool binding_ = false, invalidating_ = false; // the request is outstanding
  bool ending_ = false;
};

} // namespace asio_rdma::detail
