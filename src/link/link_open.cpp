// SPDX-License-Identifier: BSL-1.0
// A link opens its queue pair, exchanges the hello with the peer, and is connected.
#include "link/link_session.hpp"
#include "link/shared_receives_impl.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

// Bytes of a frame whose payload is copied because the device sends from one element.
constexpr std::uint32_t copied_room = 8192;

} // namespace

error_code link_impl::open(std::shared_ptr<completion_queue_impl> queue) {
  return options_.receives < credits::minimum ? asio::error::invalid_argument
                                              : open_with(std::move(queue));
}

error_code link_impl::open(const std::shared_ptr<shared_receives_impl>& shared) {
  if (options_.own_domain) // the receives belong to another
    return asio::error::invalid_argument;
  options_.receives = std::max(options_.receives, shared->options().per_link);
  options_.receive_size = shared->options().receive_size;
  options_.max_receive_size = 0;
  std::unique_ptr<shared_source> owned(new (std::nothrow) shared_source(*this, shared));
  if (!owned)
    return asio::error::no_memory;
  shared_source& share = *owned;
  if (const error_code ec = share.join())
    return ec;
  receives_ = std::move(owned);
  const error_code ec = open_with(nullptr);
  if (ec)
    share.leave();
  return ec;
}

error_code link_impl::open_with(std::shared_ptr<completion_queue_impl> queue) {
  if (without_domain_)
    return without_domain_;
  if (options_.receive_size < frame_link::min_receive_size || options_.sends == 0 ||
      options_.queue_pair.type != IBV_QPT_RC)
    return asio::error::invalid_argument;
  // The peer fits its frames to this size, so this limits them to `most_payload`.
  options_.receive_size = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(options_.most_payload,
                                frame_link::min_receive_size - frame_header::size,
                                options_.receive_size - frame_header::size) +
      frame_header::size);
  if (options_.most_payload < options_.max_receive_size)
    options_.max_receive_size = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        options_.max_receive_size, options_.most_payload + frame_header::size));
  error_code ec;
  bool opened = false, added = false;
  try {
    ec = qp_->open(std::move(queue), receives_->queue());
    opened = !ec;
    if (opened) {
      cq_ = qp_->completion_queue();
      cq_->expect_internal();
      if (copies_frames())
        options_.send_room = std::max(options_.send_room, copied_room);
      added = service_.add(session_, ec);
    }
    if (!ec)
      ec = make_work_requests();
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  if (ec && added)
    close();
  else if (ec && opened)
    qp_->close();
  return ec;
}

void link_impl::limit_receives(std::uint32_t most) noexcept {
  options_.receives = std::min(options_.receives, most);
}

error_code link_impl::make_work_requests() {
  error_code ec;
  const std::size_t room = options_.send_room;
  if (options_.own_domain) // one registration for all of it
    pool_.reserve(options_.sends * room +
                      std::size_t(options_.receive_size) *
                          std::min(options_.receives, qp_->options().receive_depth),
                  ec);
  if (!ec)
    send_memory_ = pool_.allocate(options_.sends * room, ec);
  if (!ec)
    ec = receives_->make();
  if (ec)
    return ec;
  for (std::uint32_t i = 0; i < options_.sends; ++i)
    sends_.emplace_back(*this, i, static_cast<std::byte*>(send_memory_.data()) + i * room);
  return begin();
}

// From here on the link keeps itself alive until its queue pair has ended.
error_code link_impl::begin() {
  visit v(*this);
  v.changed();
  receives_->begin();
  return reason_;
}

// On iWARP a READ registers the memory that it fills, so streams send long writes in frames. If
// either handshake announces 0 READs, neither side offers bytes.
std::uint8_t link_impl::announced_reads() const noexcept {
  const bool iwarp = member_device().type() == transport::iwarp;
  return iwarp && kind_ == handshake::kind::stream ? std::uint8_t(0) : qp_->options().max_reads;
}

private_data link_impl::hello() const {
  handshake h;
  h.what = kind_;
  h.receives = options_.receives;
  h.promise = receives_->promise();
  h.receive_size = options_.receive_size;
  h.max_reads = announced_reads();
  h.atomics = member_device().attributes().atomic_cap;
  const handshake_bytes bytes = encode(h);
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(h.size())};
}

error_code link_impl::on_hello(std::span<const std::byte> data, bool accepting) {
  handshake peer;
  if (const error_code ec = decode(data, peer))
    return ec;
  frame_options o;
  o.receives = options_.receives;
  o.receive_size = options_.receive_size;
  o.max_receive_size = options_.max_receive_size;
  o.promise = receives_->promise();
  o.peer_receives = peer.receives;
  o.peer_promise = peer.promise;
  o.peer_receive_size = peer.receive_size;
  o.sends = options_.sends;
  const std::uint32_t longest = member_device().max_message_bytes();
  o.max_payload = std::min(o.max_payload, (copies_frames() ? options_.send_room : longest) -
                                              static_cast<std::uint32_t>(frame_header::size));
  // The accepting side must not send before it has received (RFC 5044, section 7).
  const bool iwarp = member_device().type() == transport::iwarp;
  o.speaks_first = iwarp && !accepting;
  o.waits_for_peer = iwarp && accepting;
  // A connection reads its long messages from the peer's memory.
  reads_ = peer.max_reads != 0;
  if (peer.what != kind_ || !frame_link::usable(o) ||
      (kind_ == handshake::kind::message && !reads_))
    return incompatible(data, kind_);
  const std::lock_guard guard(mutex_);
  if (failing()) // parts that were made now would never be stopped
    return reason_;
  if (frames_)
    return asio::error::already_connected;
  try {
    session_.make_parts(frames_.emplace(o), peer);
  } catch (const std::bad_alloc&) {
    frames_.reset();
    return asio::error::no_memory;
  }
  if (o.waits_for_peer) {
    holding_ = true;
    qp_->hold();
  }
  return {};
}

void link_impl::on_connected(const asio::ip::tcp::endpoint& peer) {
  visit v(*this);
  if (!knows_endpoint_) {
    peer_ = peer;
    knows_endpoint_.store(true, std::memory_order_release);
  }
  if (state_ == state::open)
    state_ = state::connected;
  if (reads_ && !qp_->supports(IBV_WR_RDMA_READ)) // the connection manager says otherwise
    fail(error::incompatible_peer);
  reads_answered_.set(options_.read_timeout);
  if (!failing())
    do_or_fail([this] { probe_.start(options_.keep_alive); });
  v.run();
}

} // namespace asio_rdma::detail
