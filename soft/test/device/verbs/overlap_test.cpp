// SPDX-License-Identifier: BSL-1.0
// WRITEs between places of one memory that overlap.
#include "support/fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

using namespace soft::test;

TEST_CASE("A WRITE within one process may overlap its source on either side") {
  connected_pair p;
  const owned_mr mr(ibv_reg_mr(p.b.pd.get(), p.a.memory.data(), p.a.memory.size(),
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  REQUIRE(mr);
  constexpr std::size_t from = 64;
  for (const std::uint32_t bytes : {8u, 13u, 200u})
    for (std::size_t to = from - 17; to <= from + 17; ++to) {
      for (std::size_t i = 0; i != p.a.memory.size(); ++i)
        p.a.memory[i] = static_cast<std::byte>(i * 7);
      std::vector<std::byte> wanted = p.a.memory;
      std::memmove(wanted.data() + to, wanted.data() + from, bytes);
      ibv_sge e = p.a.element(from, bytes);
      ibv_send_wr wr = side::request(1, IBV_WR_RDMA_WRITE, e), *bad = nullptr;
      wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(p.a.memory.data() + to);
      wr.wr.rdma.rkey = mr->rkey;
      REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
      REQUIRE(p.a.completion().status == IBV_WC_SUCCESS);
      REQUIRE(std::ranges::equal(p.a.memory, wanted));
    }
}
