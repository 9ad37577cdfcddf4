// SPDX-License-Identifier: BSL-1.0
// Connecting a queue pair, by an exchange of addresses or by a connection manager.
#include "queues/queue_pair_impl.hpp"

#include <asio_rdma/detail/verbs/flush.hpp>

#include "queues/shared_receive_queue_impl.hpp"
#include "verbs/device_impl.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

namespace asio_rdma::detail {
namespace {

// Whether a path needs a global route: always on RoCE, and on a port of InfiniBand that requires it
// (ibv_query_port(3), IBV_QPF_GRH_REQUIRED).
bool needs_route(const ibv_port_attr& port) noexcept {
  return port.link_layer == IBV_LINK_LAYER_ETHERNET || (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
}

bool is_of_kind(std::uint32_t type, gid_entry::kind kind) noexcept {
  return (type == IBV_GID_TYPE_ROCE_V2) == (kind == gid_entry::kind::roce_v2);
}

// The index that the GID has now. Allocates nothing, because the peer may have the address already.
std::optional<std::uint32_t> index_of(const device& d, const gid_entry& gid,
                                      const ibv_port_attr& port) noexcept {
  const bool is_link_local = gid.gid.raw[0] == 0xfe && (gid.gid.raw[1] & 0xc0) == 0x80;
  const auto now =
      find_gid(d.native_handle(), gid.port, port, gid.gid, [&](const ibv_gid_entry& entry) {
        return is_of_kind(entry.gid_type, gid.type) &&
               (!is_link_local || entry.ndev_ifindex == gid.interface_index);
      });
  return now ? std::optional(now->gid_index) : std::nullopt;
}

} // namespace

std::optional<gid_entry> queue_pair_impl::choose_gid() const {
  const device& d = pd_.get_device();
  if (!options_.local)
    return d.best_gid(options_.port);
  const auto found = d.best_gid(*options_.local);
  return found && found->port == options_.port ? found : std::nullopt;
}

error_code queue_pair_impl::local_address(queue_pair_address& result) const {
  const device& d = pd_.get_device();
  error_code ec;
  const ibv_port_attr port = d.port(options_.port, ec);
  if (ec)
    return ec;
  result.number = number_;
  result.packet_number = packet_number_;
  result.lid = port.lid;
  result.mtu = options_.path_mtu != 0 ? options_.path_mtu : port.active_mtu;
  result.max_reads = options_.max_reads;
  const std::lock_guard lock(mutex_);
  if (!gid_)
    gid_ = choose_gid();
  if (gid_)
    result.gid = gid_->gid;
  else if (needs_route(port) || options_.local)
    return error::no_gid;
  return {};
}

error_code queue_pair_impl::connect(const queue_pair_address& peer, const connection_link* own) {
  const device& d = pd_.get_device();
  if (d.type() == transport::iwarp)
    return asio::error::operation_not_supported; // only its connection manager can connect
  queue_pair_address local;
  if (const error_code ec = local_address(local))
    return ec;
  error_code ec;
  const ibv_port_attr port = d.port(options_.port, ec);
  const bool routed = needs_route(port);

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = std::min(local.mtu, peer.mtu);
  attr.dest_qp_num = peer.number;
  attr.rq_psn = peer.packet_number;
  attr.max_dest_rd_atomic = options_.max_reads;
  attr.min_rnr_timer = options_.min_rnr_timer;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.sl = options_.service_level.value_or(0);
  attr.ah_attr.port_num = options_.port;
  attr.ah_attr.is_global = routed ? 1 : 0;
  if (routed) {
    assert(gid_); // else `local_address` has failed
    const auto index = index_of(d, *gid_, port);
    if (!index)
      return error::no_gid;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(*index);
    attr.ah_attr.grh.hop_limit = options_.hop_limit;
    attr.ah_attr.grh.traffic_class = options_.traffic_class.value_or(0);
  }
  const bool reliable = options_.type == IBV_QPT_RC;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (reliable)
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  std::unique_lock lock(mutex_);
  ec = attachable(own);
  if (ec)
    return ec;
  if (const int e = ibv_modify_qp(qp_, &attr, mask))
    return system_error_code(e);
  may_receive(IBV_QPS_RTR);

  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = packet_number_;
  attr.timeout = options_.timeout;
  attr.retry_cnt = options_.retry_count;
  attr.rnr_retry = options_.rnr_retry;
  attr.max_rd_atomic = std::min(options_.max_reads, peer.max_reads);
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (reliable)
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (const int e = ibv_modify_qp(qp_, &attr, mask)) {
    lock.unlock();
    fail(system_error_code(e)); // half connected, unusable for another peer
    return system_error_code(e);
  }
  connected_locked(attr.max_rd_atomic);
  return {};
}

error_code queue_pair_impl::attach(std::shared_ptr<connection_link> link, bool accepts) {
  assert(link != nullptr);
  const std::lock_guard lock(mutex_);
  const error_code ec = attachable();
  if (!ec) {
    link_ = std::move(link);
    await_first(accepts);
  }
  return ec;
}

error_code queue_pair_impl::check_attach() const {
  const std::lock_guard lock(mutex_);
  return attachable();
}

error_code queue_pair_impl::attachable(const connection_link* own) const {
  if (state_ == queue_pair_state::connected ||
      (state_ == queue_pair_state::open && link_ && link_.get() != own))
    return asio::error::already_connected;
  return check_start(queue_pair_state::open);
}

void queue_pair_impl::detach() {
  std::shared_ptr<connection_link> link;
  {
    const std::lock_guard lock(mutex_);
    link = std::move(link_);
    await_first(false);
  }
}

void queue_pair_impl::await_first(bool first) noexcept {
  if (std::exchange(awaits_first_, first) != first && srq_)
    srq_->await_first(*this, first);
}

// Called with the mutex locked.
void queue_pair_impl::first_arrived(operation_list& ready) {
  assert(mutex_.is_locked() && awaits_first_);
  await_first(false);
  first_receive_.queue(ready);
}

void queue_pair_impl::shared_receive_arrived(operation_list& ready) {
  const std::lock_guard lock(mutex_);
  if (awaits_first_)
    first_arrived(ready);
}

void queue_pair_impl::report_heard() noexcept {
  const std::lock_guard lock(mutex_);
  if (link_)
    link_->on_heard();
}

void queue_pair_impl::report_first_receive() {
  std::shared_ptr<connection_link> link;
  {
    const std::lock_guard lock(mutex_);
    link = link_;
  }
  if (link)
    link->on_first_receive();
}

void queue_pair_impl::connected(std::uint8_t reads) {
  const std::lock_guard lock(mutex_);
  if (state_ == queue_pair_state::open)
    connected_locked(reads);
}

void queue_pair_impl::connected_by_caller() {
  const std::lock_guard lock(mutex_);
  if (state_ == queue_pair_state::open && !link_) // not while a manager connects it
    connected_locked(reads_in_flight());
}

void queue_pair_impl::adopted(std::shared_ptr<connection_link> link) noexcept {
  const std::lock_guard lock(mutex_);
  link_ = std::move(link);
  if (state_ == queue_pair_state::open) // iWARP does not report that it is connected
    connected_locked(reads_in_flight());
}

// The READs and atomics that the queue pair may have in flight. Not all devices of iWARP report it.
std::uint8_t queue_pair_impl::reads_in_flight() const noexcept {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (options_.type != IBV_QPT_RC || pd_.get_device().type() == transport::iwarp ||
      ibv_query_qp(qp_, &attr, IBV_QP_MAX_QP_RD_ATOMIC, &init) != 0)
    return std::max<std::uint8_t>(options_.max_reads, 1);
  return attr.max_rd_atomic;
}

// At most `reads`. siw reports the sizes of its queues of READs to send and to answer, each as the
// other (siw_query_qp), so this takes the smaller.
std::uint8_t queue_pair_impl::siw_reads(std::uint8_t reads) const noexcept {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (ibv_query_qp(qp_, &attr, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &init) != 0)
    return reads;
  const auto reported = std::min(attr.max_rd_atomic, attr.max_dest_rd_atomic);
  return reported == 0 ? reads : std::min<std::uint8_t>(reads, reported);
}

// A READ to a peer that answers none would never complete, nor any later work request. A FLUSH
// takes the same resources of the peer.
void queue_pair_impl::connected_locked(std::uint8_t reads) noexcept {
  if (reads == 0)
    unsupported_ |= 1u << IBV_WR_RDMA_READ | 1u << IBV_WR_ATOMIC_CMP_AND_SWP |
                    1u << IBV_WR_ATOMIC_FETCH_AND_ADD | 1u << flush_opcode;
  else if (pd_.get_device().attributes().vendor_id == siw_vendor)
    send_.set_siw(siw_reads(reads));
  await_first(false);
  state_ = queue_pair_state::connected;
}

error_code queue_pair_impl::query(ibv_qp_attr& attr, int mask) const {
  const std::lock_guard lock(mutex_);
  if (qp_ == nullptr)
    return reason_;
  ibv_qp_init_attr init{};
  const int e = ibv_query_qp(qp_, &attr, mask, &init);
  return e == 0 ? error_code() : system_error_code(std::abs(e));
}

error_code queue_pair_impl::query_features(ibv_ece& features) const {
  const std::lock_guard lock(mutex_);
  features = {};
  if (qp_ == nullptr)
    return reason_;
  const int e = ibv_query_ece(qp_, &features);
  if (e == EOPNOTSUPP)
    features = {};
  return e == 0 || e == EOPNOTSUPP ? error_code() : system_error_code(e);
}

error_code queue_pair_impl::set_features(ibv_ece features) {
  const std::lock_guard lock(mutex_);
  if (qp_ == nullptr)
    return reason_;
  const int e = ibv_set_ece(qp_, &features);
  return e == 0 || e == EOPNOTSUPP ? error_code() : system_error_code(e);
}

error_code queue_pair_impl::modify(ibv_qp_attr& attr, int mask) {
  const std::lock_guard lock(mutex_);
  if (state_ == queue_pair_state::failed || state_ == queue_pair_state::closed)
    return reason_; // the error of the operation that this is a step of
  if (const int e = ibv_modify_qp(qp_, &attr, mask))
    return system_error_code(std::abs(e));
  if ((mask & IBV_QP_STATE) != 0)
    may_receive(attr.qp_state);
  return {};
}

} // namespace asio_rdma::detail
