// SPDX-License-Identifier: BSL-1.0
// ibv_create_qp_ex(3): the operations that a queue pair may have for ibv_wr_post(3).
#include "built_requests.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <dlfcn.h>
#include <tuple>

using namespace soft::test;

namespace {

// Makes a queue pair: 0, or errno.
int make(side& s, ibv_qp_type type, std::uint64_t operations, std::uint32_t mask = 0,
         std::uint32_t create_flags = 0) {
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = s.cq.get();
  init.cap.max_send_wr = init.cap.max_recv_wr = 1;
  init.qp_type = type;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | mask;
  init.pd = s.pd.get();
  init.send_ops_flags = operations;
  init.create_flags = create_flags;
  errno = 0;
  return owned_qp(ibv_create_qp_ex(s.qp->context, &init)) ? 0 : errno;
}

} // namespace

TEST_CASE("A queue pair has the operations of its type, and no others") {
  const auto context = open_soft();
  side s(*context);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t operation = std::uint64_t(1) << bit;
    INFO("bit " << bit);
    const auto expected = [&](std::uint64_t had) {
      return (operation & had) != 0 ? 0 : EOPNOTSUPP;
    };
    CHECK(make(s, IBV_QPT_RC, operation) == expected(all_operations));
    CHECK(make(s, IBV_QPT_UC, operation) == expected(unreliable_operations));
    CHECK(make(s, IBV_QPT_UD, operation) == expected(datagram_operations));
  }
  CHECK(make(s, IBV_QPT_RC, all_operations) == 0);
  CHECK(make(s, IBV_QPT_RC, all_operations | IBV_QP_EX_WITH_TSO) == EOPNOTSUPP);
  CHECK(make(s, IBV_QPT_RC, 0) == 0);
}

TEST_CASE("Attributes of queue pairs that the device does not know are refused") {
  const auto context = open_soft();
  side s(*context);
  CHECK(make(s, IBV_QPT_RC, all_operations, IBV_QP_INIT_ATTR_CREATE_FLAGS) == 0);
  CHECK(make(s, IBV_QPT_RC, all_operations, IBV_QP_INIT_ATTR_CREATE_FLAGS,
             IBV_QP_CREATE_SOURCE_QPN) == EOPNOTSUPP);
  for (const std::uint32_t mask : {std::uint32_t(IBV_QP_INIT_ATTR_XRCD),
                                   std::uint32_t(IBV_QP_INIT_ATTR_MAX_TSO_HEADER), 1u << 20})
    CHECK(make(s, IBV_QPT_RC, all_operations, mask) == EOPNOTSUPP);
}

TEST_CASE("A personality's operations for ibv_wr_post") {
  struct expected {
    const char* name;
    ibv_qp_type type;
    int send, write, bind;
  };
  for (const expected& e :
       {expected{"plain", IBV_QPT_RC, 0, 0, 0}, expected{"mlx5", IBV_QPT_RC, 0, 0, 0},
        expected{"irdma", IBV_QPT_RC, EOPNOTSUPP, EOPNOTSUPP, EOPNOTSUPP},
        expected{"bnxt_re", IBV_QPT_RC, 0, 0, EOPNOTSUPP},
        expected{"erdma", IBV_QPT_RC, EOPNOTSUPP, EOPNOTSUPP, EOPNOTSUPP},
        expected{"efa", IBV_QPT_UD, 0, EOPNOTSUPP, EOPNOTSUPP}}) {
    INFO(e.name);
    with_settings set("");
    const auto context = open_soft();
    side s(*context);
    set.replace(e.name);
    CHECK(make(s, e.type, IBV_QP_EX_WITH_SEND) == e.send);
    CHECK(make(s, e.type, IBV_QP_EX_WITH_RDMA_WRITE) == e.write);
    CHECK(make(s, e.type, IBV_QP_EX_WITH_BIND_MW) == e.bind);
    CHECK(make(s, e.type, 0) == e.send);
  }
}

TEST_CASE("A personality's numbers of its vendor") {
  for (const auto& [name, vendor, part] :
       {std::tuple("plain", 0x50f7u, 0u), std::tuple("mlx5", 0x2c9u, 4119u),
        std::tuple("efa", 0x1d0fu, 0xefa3u)}) {
    with_settings set(name);
    const auto context = open_soft();
    CHECK(attributes(*context).vendor_id == vendor);
    CHECK(attributes(*context).vendor_part_id == part);
  }
}

TEST_CASE("ibv_qp_to_qp_ex gives an extended queue pair, here and in libibverbs") {
  void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* const theirs =
      reinterpret_cast<decltype(&ibv_qp_to_qp_ex)>(dlsym(library, "ibv_qp_to_qp_ex"));
  REQUIRE(theirs != nullptr);
  CHECK(theirs != &ibv_qp_to_qp_ex);
  const auto context = open_soft();
  side with(*context, {.operations = IBV_QP_EX_WITH_SEND}), without(*context);
  CHECK(ibv_qp_to_qp_ex(with.qp.get()) == with.built);
  CHECK(&with.built->qp_base == with.qp.get());
  CHECK(theirs(with.qp.get()) == with.built);
  CHECK(ibv_qp_to_qp_ex(without.qp.get()) == nullptr);
  CHECK(theirs(without.qp.get()) == nullptr);
  dlclose(library);
}
