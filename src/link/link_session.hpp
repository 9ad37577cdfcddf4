// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connecting/connection_target.hpp"
#include "link/link_impl.hpp"
#include "queues/completion_service.hpp"

#include <memory>
#include <span>

namespace asio_rdma::detail {

/// The base of a protocol on a link: the messages of a connection, or the bytes of a stream. The
/// session has the link, and one reference keeps both alive. The context and the connection manager
/// know the session, which passes their reports to the link.
class link_session : public context_member, public connection_target {
public:
  link_impl& link() noexcept { return link_; }
  const link_impl& link() const noexcept { return link_; }

  const std::shared_ptr<queue_pair_impl>& target_queue_pair() const noexcept override {
    return link_.queue_pair();
  }
  private_data hello() const override { return link_.hello(); }
  error_code on_hello(std::span<const std::byte> data, bool accepting) override {
    return link_.on_hello(data, accepting);
  }
  void on_connected(const connection_info& info) override { link_.on_connected(info.remote); }

  /// The counters of the link, and those of a connection's messages. Thread-safe.
  virtual connection_statistics counters() const noexcept {
    connection_statistics result;
    static_cast<link_statistics&>(result) = link_.statistics();
    return result;
  }

  void on_context_shutdown() override { link_.on_context_shutdown(); }
  void on_device_event(const ibv_async_event&) noexcept override {}
  const device& member_device() const noexcept override { return link_.member_device(); }

protected:
  link_session(asio::execution_context& context, const memory_pool& pool, handshake::kind kind,
               const link_options& options)
      : link_(*this, context, pool, kind, options) {}
  ~link_session() override = default;

  link_impl link_;

private:
  friend link_impl; // calls the functions below

  /// The link calls the following functions with itself locked.
  ///@{

  /// Makes the parts of the protocol, once the peer's values are known.
  virtual void make_parts(frame_link& frames, const handshake& peer) = 0;
  /// Carries out actions of the parts, until there is none or the frames have news. Returns true if
  /// there were any.
  virtual bool run_parts(operation_list& done) = 0;
  /// The visit that `link_impl::visit_when_idle` has asked for. If `quiet`, nothing else was ready.
  virtual void on_idle(bool /*quiet*/) {}
  /// The end of a key that `link_impl::begin_end` has begun.
  virtual void on_key_ended(offered& o, operation_list& done) = 0;
  /// Adds a payload that lies in the buffers of a part's operation.
  virtual void add_payload(const outgoing_frame& frame, frame_transfer& to) = 0;
  ///@}
};

} // namespace asio_rdma::detail
