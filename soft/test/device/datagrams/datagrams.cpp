// SPDX-License-Identifier: BSL-1.0
#include "datagrams.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>

namespace soft::test {

datagram_side::datagram_side(ibv_context& c, bool v6) : s(c, {.type = IBV_QPT_UD}) {
  REQUIRE(s.to(IBV_QPS_INIT) == 0);
  REQUIRE(s.to(IBV_QPS_RTR) == 0);
  REQUIRE(s.to(IBV_QPS_RTS) == 0);
  ibv_ah_attr a{};
  a.is_global = 1;
  a.port_num = 1;
  a.grh.sgid_index = loopback_index(c, v6);
  a.grh.hop_limit = 5;
  a.grh.traffic_class = 0x2a;
  REQUIRE(ibv_query_gid(&c, 1, a.grh.sgid_index, &a.grh.dgid) == 0);
  way.reset(ibv_create_ah(s.pd.get(), &a));
  REQUIRE(way);
}

void datagram_side::receive(std::uint64_t id, std::uint32_t bytes) {
  REQUIRE(s.receive(id, 256 * id, bytes) == 0);
}

int datagram_side::send(std::uint64_t id, std::uint32_t to, std::uint32_t q_key,
                        ibv_wr_opcode opcode) {
  // Memory of its own, as an earlier datagram may not have been sent yet.
  const std::size_t at = id % 32 * 8;
  if (s.memory[at] != static_cast<std::byte>(id))
    s.memory[at] = static_cast<std::byte>(id);
  ibv_sge e = s.element(at, 8);
  ibv_send_wr wr = side::request(id, opcode, e), *bad = nullptr;
  wr.imm_data = htonl(static_cast<std::uint32_t>(id));
  wr.wr.ud.ah = way.get();
  wr.wr.ud.remote_qpn = to;
  wr.wr.ud.remote_qkey = q_key;
  return ibv_post_send(s.qp.get(), &wr, &bad);
}

} // namespace soft::test
