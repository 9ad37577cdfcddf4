// SPDX-License-Identifier: BSL-1.0
// The queue pair of an attempt: what rdma_cm tells the peer about it, and its way to RTS.
#include "connecting/cm_connection.hpp"
#include "verbs/device_impl.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>

namespace asio_rdma::detail {

rdma_conn_param cm_connection::parameters(const private_data& data) const {
  assert(data.size() <= cm_data::most); // `check_accept` or `on_address_resolved` has checked it
  const queue_pair_options& o = qp_->options();
  rdma_conn_param p{};
  p.private_data = data.data();
  p.private_data_len = static_cast<std::uint8_t>(data.size());
  p.responder_resources = o.max_reads;
  p.initiator_depth = o.max_reads;
  p.retry_count = std::min(o.retry_count, most_rxe_retries); // the peer's device may be rxe
  p.rnr_retry_count = o.rnr_retry;
  p.qp_num = qp_->number();
  p.srq = qp_->has_shared_receives() ? 1 : 0;
  return p;
}

error_code cm_connection::prepare_queue_pair(ibv_qp_state to, std::uint8_t reads_out,
                                             std::uint8_t reads_in) {
  queue_pair_change c;
  const error_code ec = find_change(to, reads_out, reads_in, c);
  return ec ? ec : apply(c);
}

// rdma_cm knows the path; attributes of this side alone come from the queue pair's options.
error_code cm_connection::find_change(ibv_qp_state to, std::uint8_t reads_out,
                                      std::uint8_t reads_in, queue_pair_change& c) const {
  const queue_pair_options& o = qp_->options();
  auto& [attr, mask] = c;
  attr.qp_state = to;
  if (rdma_init_qp_attr(id_, &attr, &mask) != 0)
    return step_error(errno);
  switch (to) {
  case IBV_QPS_INIT:
    attr.qp_access_flags = qp_->access_flags();
    mask |= IBV_QP_ACCESS_FLAGS;
    break;
  case IBV_QPS_RTR:
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0)
      attr.min_rnr_timer = o.min_rnr_timer;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0)
      attr.max_dest_rd_atomic = reads_in;
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
      attr.max_rd_atomic = reads_out;
  }
  return {};
}

error_code cm_connection::apply(queue_pair_change& c) {
  if (c.mask == 0)
    return {};
  if (c.attr.qp_state != IBV_QPS_INIT)
    spent_ = true; // half connected, unusable for another peer
  const error_code ec = qp_->modify(c.attr, c.mask);
  return ec == boost::system::errc::host_unreachable ? error_code(error::unreachable) : ec;
}

// Enhanced connection establishment: the request and the answer carry features of the vendor's
// queue pairs, such as selective repeat. librdmacm negotiates them only for a queue pair that it
// has made. Without them the feature stays off: an adapter without it, or of another vendor, an
// older kernel, iWARP.
// Source: rdma_get_remote_ece(3), rdma_set_local_ece(3)

// The next request or answer offers the features of the queue pair.
error_code cm_connection::offer_features() {
  ibv_ece own{};
  if (const error_code ec = qp_->query_features(own))
    return ec;
  if (own.vendor_id == 0 || rdma_set_local_ece(id_, &own) == 0)
    return {};
  return cm_error(errno);
}

// The next change of the queue pair's state enables the features that the peer has offered.
error_code cm_connection::take_features() {
  ibv_ece own{}, peer{};
  if (const error_code ec = qp_->query_features(own))
    return ec;
  if (own.vendor_id == 0)
    return {};
  if (rdma_get_remote_ece(id_, &peer) != 0)
    return cm_error(errno);
  if (peer.vendor_id != own.vendor_id)
    peer = {own.vendor_id, 0, 0};
  return qp_->set_features(peer);
}

} // namespace asio_rdma::detail
