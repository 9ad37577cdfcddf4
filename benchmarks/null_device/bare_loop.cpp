// SPDX-License-Identifier: BSL-1.0
//
// The cost of hand-written verbs on the null device: a window of 64-byte sends, one ibv_post_send
// each, polled 32 at a time. The difference between two runs excludes the cost of starting and
// ending the program, and is the same in every run:
//   valgrind --tool=callgrind --toggle-collect=bare_loop null_bare_loop 10000
#include "null_device.hpp"

#include <infiniband/verbs.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned window = 32;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "null_bare_loop: %s\n", what);
  std::exit(1);
}

} // namespace

extern "C" __attribute__((noinline)) void bare_loop(ibv_qp* qp, ibv_cq* cq, ibv_sge* sge,
                                                    std::uint64_t operations) {
  std::array<ibv_wc, 32> wc;
  std::uint64_t posted = 0, done = 0;
  while (done < operations) {
    while (posted < operations && posted - done < window) {
      ibv_send_wr wr{};
      wr.wr_id = posted++;
      wr.sg_list = sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      ibv_send_wr* bad;
      if (ibv_post_send(qp, &wr, &bad))
        fail("post");
    }
    const int n = ibv_poll_cq(cq, static_cast<int>(wc.size()), wc.data());
    for (int i = 0; i < n; ++i)
      if (wc[static_cast<std::size_t>(i)].status != IBV_WC_SUCCESS)
        fail("completion");
    done += static_cast<std::uint64_t>(n);
  }
}

int main(int argc, char* argv[]) {
  std::uint64_t operations = 0;
  if (argc == 2)
    std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), operations);
  if (!operations) {
    std::fprintf(stderr, "usage: null_bare_loop OPERATIONS\n");
    return 2;
  }

  ibv_device** list = ibv_get_device_list(nullptr);
  ibv_context* context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  ibv_pd* pd = ibv_alloc_pd(context);
  std::array<char, 64> memory{};
  const int access = IBV_ACCESS_LOCAL_WRITE;
  ibv_mr* mr = ibv_reg_mr(pd, memory.data(), memory.size(), access);
  ibv_cq* cq = ibv_create_cq(context, 2 * window, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {window, 1, 1, 1, 0};
  ibv_qp* qp = ibv_create_qp(pd, &init);
  ibv_qp_attr attr{};
  for (const auto state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    attr.qp_state = state;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
      fail("modify");
  }

  ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory.data()),
              static_cast<std::uint32_t>(memory.size()), mr->lkey};
  bare_loop(qp, cq, &sge, operations);

  const auto& c = null_device::counts();
  std::printf("operations %llu, ibv_post_send %llu, ibv_poll_cq %llu, completions %llu\n",
              static_cast<unsigned long long>(c.send_requests),
              static_cast<unsigned long long>(c.post_send_calls),
              static_cast<unsigned long long>(c.poll_calls),
              static_cast<unsigned long long>(c.completions));
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
  ibv_dereg_mr(mr);
  ibv_dealloc_pd(pd);
  ibv_close_device(context);
  return c.send_requests == operations && c.completions == operations ? 0 : 1;
}
