// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_BUILT_REQUESTS_HPP
#define SOFT_TEST_DEVICE_BUILT_REQUESTS_HPP

#include "support/fixture.hpp"

namespace soft::test {

constexpr std::uint64_t datagram_operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr std::uint64_t unreliable_operations =
    datagram_operations | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE |
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
constexpr std::uint64_t all_operations = unreliable_operations | IBV_QP_EX_WITH_RDMA_READ |
                                         IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                         IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// Posts what `build` builds, with ids from `id` on: the result of ibv_wr_complete(3).
template <class Build>
int post(side& s, std::uint64_t id, Build build) {
  ibv_wr_start(s.built);
  s.built->wr_id = id;
  s.built->wr_flags = IBV_SEND_SIGNALED;
  build(s.built);
  return ibv_wr_complete(s.built);
}

/// The data of a request: an element of the memory of `s`.
inline void set_element(side& s, std::size_t offset = 0, std::uint32_t bytes = 8) {
  const ibv_sge e = s.element(offset, bytes);
  ibv_wr_set_sge(s.built, e.lkey, e.addr, e.length);
}
/// A WRITE of the first 8 bytes of `s` to the first of `peer`.
inline void build_write(side& s, const side& peer, std::uint64_t id) {
  s.built->wr_id = id;
  s.built->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(s.built, peer.mr->rkey, peer.element(0, 8).addr);
  set_element(s);
}

} // namespace soft::test

#endif
