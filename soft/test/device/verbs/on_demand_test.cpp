// SPDX-License-Identifier: BSL-1.0
// Registration on demand, ibv_advise_mr(3), and the capabilities.
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace soft::test;

namespace {

ibv_odp_caps capabilities(ibv_context& c) {
  ibv_device_attr_ex a{};
  REQUIRE(ibv_query_device_ex(&c, nullptr, &a) == 0);
  return a.odp_caps;
}

// Pages that the process has not touched.
struct pages {
  static constexpr std::size_t size = 1 << 16;
  pages() : data(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(data != MAP_FAILED);
  }
  ~pages() { munmap(data, size); }
  pages(const pages&) = delete;
  pages& operator=(const pages&) = delete;
  void* data;
};

owned_mr on_demand(side& s, pages& p, int access = IBV_ACCESS_LOCAL_WRITE) {
  return owned_mr(ibv_reg_mr(s.pd.get(), p.data, pages::size, access | IBV_ACCESS_ON_DEMAND));
}

} // namespace

TEST_CASE("Memory that is registered on demand is used as any other") {
  connected_pair p;
  pages memory;
  const owned_mr mr = on_demand(p.b, memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  REQUIRE(mr);
  p.a.memory[0] = std::byte{5};
  ibv_sge e = p.a.element(0, 8);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &e;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(memory.data) + 8192;
  wr.wr.rdma.rkey = mr->rkey;
  REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(static_cast<const std::byte*>(memory.data)[8192] == std::byte{5});
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(memory.data) + pages::size;
  REQUIRE(ibv_post_send(p.a.qp.get(), &wr, &bad) == 0);
  CHECK(p.a.completion().status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("The capabilities tell of registration on demand where it works") {
  for (const auto& [name, has] :
       {std::pair("plain", true), std::pair("mlx5", true), std::pair("irdma", false),
        std::pair("bnxt_re", false), std::pair("erdma", false), std::pair("efa", false)}) {
    INFO(name);
    with_settings set("");
    const auto context = open_soft();
    side s(*context);
    pages memory;
    set.replace(name);
    const ibv_odp_caps c = capabilities(*context);
    CHECK(c.general_caps == (has ? std::uint64_t(IBV_ODP_SUPPORT) : 0u));
    CHECK((c.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_READ) == (has ? 8u : 0u));
    CHECK((c.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_READ) == 0);
    errno = 0;
    const owned_mr mr = on_demand(s, memory);
    CHECK((mr ? 0 : errno) == (has ? 0 : EOPNOTSUPP));
    ibv_sge range = s.element(0, 8);
    CHECK(ibv_advise_mr(s.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1) ==
          (has ? EFAULT : EOPNOTSUPP)); // not registered on demand
  }
}

TEST_CASE("All memory at once, which is implicit, is refused") {
  const auto context = open_soft();
  side s(*context);
  CHECK(ibv_reg_mr(s.pd.get(), nullptr, ~std::size_t(0), IBV_ACCESS_ON_DEMAND) == nullptr);
  CHECK(errno == EINVAL);
}

TEST_CASE("An advice succeeds for ranges inside regions on demand, and fails for others") {
  const auto context = open_soft();
  side s(*context);
  const owned_pd other(ibv_alloc_pd(context.get()));
  pages memory, constant;
  const owned_mr mr = on_demand(s, memory), read_only = on_demand(s, constant, 0);
  REQUIRE(mr);
  REQUIRE(read_only);
  const auto first = reinterpret_cast<std::uintptr_t>(memory.data);
  ibv_sge ranges[] = {{first, 100, mr->lkey}, {first + 4096, pages::size - 4096, mr->lkey}};
  const auto advise = [&](ibv_advise_mr_advice advice, std::uint32_t flags = 0,
                          std::uint32_t count = 2) {
    return ibv_advise_mr(s.pd.get(), advice, flags, ranges, count);
  };
  for (const ibv_advise_mr_advice advice :
       {IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT}) {
    CHECK(advise(advice) == 0);
    CHECK(advise(advice, IBV_ADVISE_MR_FLAG_FLUSH) == 0);
    CHECK(advise(advice, 0, 0) == 0);
    CHECK(advise(advice, 2) == EINVAL);
    ++ranges[1].length; // beyond the region
    CHECK(advise(advice) == EFAULT);
    CHECK(advise(advice, 0, 1) == 0);
    --ranges[1].length;
    ranges[0].lkey += 1 << 8; // another region, or none
    CHECK(advise(advice) == EFAULT);
    ranges[0].lkey -= 1 << 8;
    CHECK(ibv_advise_mr(other.get(), advice, 0, ranges, 2) == EFAULT);
    ibv_sge plain = s.element(0, 8);
    CHECK(ibv_advise_mr(s.pd.get(), advice, 0, &plain, 1) == EFAULT);
  }
  CHECK(advise(static_cast<ibv_advise_mr_advice>(3)) == EOPNOTSUPP);
  ibv_sge constant_range{reinterpret_cast<std::uintptr_t>(constant.data), 8, read_only->lkey};
  CHECK(ibv_advise_mr(s.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &constant_range, 1) == 0);
  CHECK(ibv_advise_mr(s.pd.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &constant_range, 1) ==
        EFAULT);
  // Memory that is no part of the process any more.
  REQUIRE(munmap(static_cast<std::byte*>(memory.data) + 4096, 4096) == 0);
  CHECK(advise(IBV_ADVISE_MR_ADVICE_PREFETCH) == EFAULT);
  CHECK(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, 1) == 0);
}

TEST_CASE("child: only pinned memory counts as locked", "[.child]") {
  // The process may not lock more than its limit.
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  REQUIRE(syscall(SYS_capset, &header, data) == 0);
  const rlimit limit{pages::size + 4096, pages::size + 4096};
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  const auto context = open_soft();
  side s(*context); // 4096 bytes
  pages memory;
  const auto pinned = [&] {
    return owned_mr(ibv_reg_mr(s.pd.get(), memory.data, pages::size, IBV_ACCESS_LOCAL_WRITE));
  };
  {
    const owned_mr first = on_demand(s, memory), second = pinned();
    CHECK(first);
    CHECK(second);
    CHECK_FALSE(pinned());
    CHECK(on_demand(s, memory));
  }
  CHECK(pinned());
}

TEST_CASE("Memory that is registered on demand does not count as locked") {
  child other("child: only pinned memory counts as locked", {{"ASIO_RDMA_SOFT", "locks_memory=1"}});
  CHECK(other.wait() == 0);
}
