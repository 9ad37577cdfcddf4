// SPDX-License-Identifier: BSL-1.0
// Datagrams of queue pairs of type UD. A datagram is lost if no queue pair can take it. That is no
// failure of the sender.
#include "device/queue_pair.hpp"

#include "roce/datagram.hpp"

namespace soft {
namespace {

constexpr std::uint8_t ipv6_in_sl = 8 | 1, ipv4_in_sl = 8 | 2;

void add(spans& to, std::span<const std::byte> bytes) {
  to.add(const_cast<std::byte*>(bytes.data()), bytes.size());
}

} // namespace

outcome queue_pair::carry_datagram(send_work& r) {
  if (r.opcode != IBV_WR_SEND && r.opcode != IBV_WR_SEND_WITH_IMM)
    return failed(IBV_WC_LOC_QP_OP_ERR);
  spans from;
  if (!gather(r, 0, from))
    return failed(IBV_WC_LOC_PROT_ERR);
  if (from.bytes > message_bytes_)
    return failed(IBV_WC_LOC_LEN_ERR);
  const datagram_way& handle = r.way;
  const ibv_global_route& way = handle.attributes.grh;
  if (is_cut_ || !roce::is_of_a_host(way.dgid))
    return {};
  roce::datagram d;
  d.way = {.source = handle.source.gid,
           .destination = way.dgid,
           .traffic_class = way.traffic_class,
           .hop_limit = way.hop_limit,
           .flow_label = way.flow_label & 0xfffff};
  d.from = qp_base.qp_num;
  d.to = r.qp_num & 0xffffff;
  // If the highest bit of a Q_Key is set, that of the sending queue pair is used.
  d.q_key = (r.q_key & 0x80000000) != 0 ? attributes_.qkey : r.q_key;
  d.solicited = (r.flags & IBV_SEND_SOLICITED) != 0;
  if (r.opcode == IBV_WR_SEND_WITH_IMM)
    d.immediate = r.immediate;
  d.payload = from.bytes;
  const roce::datagram_frame frame = encode(d);
  queue_pair* const to = handle.is_local ? find(d.to) : nullptr;
  spans whole;
  add(whole, to != nullptr ? frame.before().first<sizeof(ibv_grh)>() : frame.before());
  for (unsigned i = 0; i < from.count; ++i)
    whole.add(from.parts[i].data, from.parts[i].bytes);
  if (to != nullptr) {
    to->take_datagram(d, whole);
    return {};
  }
  static constexpr std::byte zeros[4]{};
  add(whole, std::span(zeros).first(frame.padding));
  const bool is_sent =
      handle.is_local ? send_datagram(*this, d.to, whole) : send_to_network(*this, handle, whole);
  return {.is = is_sent ? outcome::done : outcome::later};
}

void queue_pair::take_datagram(const roce::datagram& d, const spans& whole) {
  if (qp_base.qp_type != IBV_QPT_UD || is_cut_ || d.q_key != attributes_.qkey ||
      (present() != IBV_QPS_RTR && present() != IBV_QPS_RTS))
    return;
  receive_work* const receive = receives().front();
  const auto into = receive == nullptr ? std::nullopt : sink(*receive);
  if (!into || into->bytes < whole.bytes)
    return;
  transfer(*into, whole);
  arrival a;
  a.bytes = static_cast<std::uint32_t>(whole.bytes);
  a.source = d.from;
  a.solicited = d.solicited;
  if (habits().header_in_sl)
    a.service_level = roce::is_ipv4(d.way.destination) ? ipv4_in_sl : ipv6_in_sl;
  if (d.immediate) {
    a.flags = IBV_WC_WITH_IMM;
    a.immediate = *d.immediate;
  }
  const std::uint64_t taken = receive->wr_id;
  take_receive();
  received(taken, IBV_WC_SUCCESS, a);
}

} // namespace soft
