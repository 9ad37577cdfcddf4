// SPDX-License-Identifier: BSL-1.0
//
// Handles of libibverbs for the tests of adoption.
#pragma once

#include "catch.hpp"
#include "device/support/pair.hpp"

#include <array>

namespace test {

/// The library's objects on which the handles are made.
struct site {
  device dev = open_device();
  protection_domain pd{dev};
  std::array<char, 256> bytes{};
  memory_region region{pd, bytes.data(), bytes.size(), most_rights(dev)};

  ibv_cq* make_cq(ibv_comp_channel* channel = nullptr) const {
    return ibv_create_cq(dev.native_handle(), 128, nullptr, channel, 0);
  }
  /// In the state INIT, as the library's own queue pairs are.
  ibv_qp* make_qp(ibv_cq* cq, ibv_srq* srq = nullptr) const {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.srq = srq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {16, srq != nullptr ? 0u : 16u, 1, srq != nullptr ? 0u : 1u, 0};
    ibv_qp* const qp = ibv_create_qp(pd.native_handle(), &init);
    REQUIRE(qp != nullptr);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = dev.first_port();
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    REQUIRE(ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
            0);
    return qp;
  }
};

} // namespace test
