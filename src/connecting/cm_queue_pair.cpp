// SPDX-License-Identifier: BSL-1.0
#include "connecting/cm_queue_pair.hpp"

#include "connecting/cm_service.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>

namespace asio_rdma::detail {

bool has_given_up(rdma_cm_id* id) noexcept {
  assert(id != nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  int mask = 0;
  return rdma_init_qp_attr(id, &attr, &mask) != 0 && errno == EINVAL;
}

// EINVAL: the peer has given up, so no step can follow, though its event is still to come.
error_code cm_queue_pair::error_of(int value) const noexcept {
  if (value != EINVAL)
    return cm_error(value);
  if (now == step::answer && has_given_up(id))
    return asio::error::connection_aborted;
  return now == step::confirm ? error_code(error::rejected) : system_error_code(value);
}

rdma_conn_param cm_queue_pair::parameters(const private_data& data) const noexcept {
  assert(data.size() <= cm_data::most); // `check_accept` or `on_address_resolved` has checked it
  const queue_pair_options& o = qp->options();
  rdma_conn_param p{};
  p.private_data = data.data();
  p.private_data_len = static_cast<std::uint8_t>(data.size());
  p.responder_resources = o.max_reads;
  p.initiator_depth = o.max_reads;
  p.retry_count = o.retry_count;
  p.rnr_retry_count = o.rnr_retry;
  p.qp_num = qp->number();
  p.srq = qp->has_shared_receives() ? 1 : 0;
  return p;
}

error_code cm_queue_pair::prepare(ibv_qp_state to, read_limits reads) const noexcept {
  change c;
  const error_code ec = find_change(to, reads, c);
  return ec ? ec : apply(c);
}

// rdma_cm knows the path; attributes of this side alone come from the queue pair's options.
error_code cm_queue_pair::find_change(ibv_qp_state to, read_limits reads,
                                      change& c) const noexcept {
  const queue_pair_options& o = qp->options();
  auto& [attr, mask] = c;
  attr.qp_state = to;
  if (rdma_init_qp_attr(id, &attr, &mask) != 0)
    return error_of(errno);
  switch (to) {
  case IBV_QPS_INIT:
    attr.qp_access_flags = qp->access_flags();
    mask |= IBV_QP_ACCESS_FLAGS;
    break;
  case IBV_QPS_RTR:
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0)
      attr.min_rnr_timer = o.min_rnr_timer;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0)
      attr.max_dest_rd_atomic = reads.in;
    if ((mask & IBV_QP_PATH_MTU) != 0 && o.path_mtu != 0)
      attr.path_mtu = std::min(attr.path_mtu, o.path_mtu);
    if ((mask & IBV_QP_AV) != 0) {
      ibv_ah_attr& way = attr.ah_attr;
      way.sl = o.service_level.value_or(way.sl);
      if (way.is_global != 0) {
        way.grh.hop_limit = std::max(way.grh.hop_limit, o.hop_limit);
        way.grh.traffic_class = o.traffic_class.value_or(way.grh.traffic_class);
      }
    }
    break;
  default:
    if ((mask & IBV_QP_TIMEOUT) != 0)
      attr.timeout = o.timeout;
    if ((mask & IBV_QP_RETRY_CNT) != 0)
      attr.retry_cnt = o.retry_count;
    if ((mask & IBV_QP_RNR_RETRY) != 0)
      attr.rnr_retry = o.rnr_retry;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0)
      attr.max_rd_atomic = reads.out;
  }
  return {};
}

error_code cm_queue_pair::apply(change& c) const noexcept {
  if (c.mask == 0)
    return {};
  const error_code ec = qp->modify(c.attr, c.mask);
  return ec == boost::system::errc::host_unreachable ? error_code(error::unreachable) : ec;
}

// Enhanced connection establishment: the request and the answer carry features of the vendor's
// queue pairs, such as selective repeat. librdmacm negotiates them only for a queue pair that it
// has made. Without them the feature stays off: an adapter without it, or of another vendor, an
// older kernel, iWARP.
// Source: rdma_get_remote_ece(3), rdma_set_local_ece(3)

// The next request or answer offers the features of the queue pair.
error_code cm_queue_pair::offer_features() const noexcept {
  ibv_ece own{};
  if (const error_code ec = qp->query_features(own))
    return ec;
  if (own.vendor_id == 0 || rdma_set_local_ece(id, &own) == 0)
    return {};
  return cm_error(errno);
}

// The next change of the queue pair's state enables the features that the peer has offered.
error_code cm_queue_pair::take_features() const noexcept {
  ibv_ece own{}, peer{};
  if (const error_code ec = qp->query_features(own))
    return ec;
  if (own.vendor_id == 0)
    return {};
  if (rdma_get_remote_ece(id, &peer) != 0)
    return cm_error(errno);
  if (peer.vendor_id != own.vendor_id)
    peer = {own.vendor_id, 0, 0};
  return qp->set_features(peer);
}

} // namespace asio_rdma::detail
