// SPDX-License-Identifier: BSL-1.0
// ibv_wr_post(3): requests are posted together or not at all, whatever other threads, errors and
// settings do.
#include "built_requests.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <map>
#include <semaphore>
#include <thread>

using namespace soft::test;
using namespace std::chrono_literals;

TEST_CASE("Nothing is posted before ibv_wr_complete, or after ibv_wr_abort") {
  connected_pair p({.operations = all_operations});
  p.a.memory[0] = std::byte{7};
  const auto engine_ran = [&] {
    REQUIRE(p.b.remote(9, IBV_WR_RDMA_READ, p.a) == 0);
    REQUIRE(p.b.completion().status == IBV_WC_SUCCESS);
  };
  p.b.memory[8] = std::byte{1}; // the READs of `b` change its first 8 bytes
  const auto build = [&](std::uint64_t id) {
    p.a.built->wr_id = id;
    p.a.built->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(p.a.built, p.b.mr->rkey, p.b.element(8, 0).addr);
    set_element(p.a);
  };
  ibv_wr_start(p.a.built);
  build(1);
  build(2);
  engine_ran();
  CHECK(p.b.memory[8] == std::byte{1});
  CHECK(p.a.is_quiet());
  ibv_wr_abort(p.a.built);
  engine_ran();
  CHECK(p.b.memory[8] == std::byte{1});
  ibv_wr_start(p.a.built);
  build(3);
  build(4);
  CHECK(p.a.is_quiet());
  CHECK(ibv_wr_complete(p.a.built) == 0);
  CHECK(p.a.completion().wr_id == 3);
  CHECK(p.a.completion().wr_id == 4);
  CHECK(p.b.memory[8] == std::byte{7});
}

TEST_CASE("Nothing built is nothing posted") {
  connected_pair p({.operations = all_operations});
  ibv_wr_start(p.a.built);
  CHECK(ibv_wr_complete(p.a.built) == 0);
  check_clean(p.a, p.b, 1);
}

TEST_CASE("A wrong request is reported by ibv_wr_complete, and none of its batch is posted") {
  connected_pair p({.operations = all_operations & ~std::uint64_t(IBV_QP_EX_WITH_SEND_WITH_IMM),
                    .elements = 2,
                    .inline_bytes = 40});
  const ibv_sge elements[] = {p.a.element(0, 1), p.a.element(1, 1), p.a.element(2, 1)};
  std::array<char, 41> bytes{};
  const ibv_data_buf buffers[] = {{bytes.data(), 40}, {bytes.data(), 1}};
  const ibv_data_buf huge[] = {{bytes.data(), 1}, {bytes.data(), ~std::size_t(0)}};
  const std::uint64_t to = p.b.element(0, 0).addr;
  const std::uint32_t key = p.b.mr->rkey;
  ibv_mw* const first_kind = ibv_alloc_mw(p.a.pd.get(), IBV_MW_TYPE_1);
  REQUIRE(first_kind != nullptr);
  const ibv_mw_bind_info how{p.a.mr.get(), p.a.element(0, 0).addr, 8, 0};
  const std::map<std::string, std::function<void(ibv_qp_ex*)>> wrong{
      {"too many elements",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_write(q, key, to);
         ibv_wr_set_sge_list(q, 3, elements);
       }},
      {"too much inline data",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_write(q, key, to);
         ibv_wr_set_inline_data(q, bytes.data(), 41);
       }},
      {"too much inline data in a list",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_write(q, key, to);
         ibv_wr_set_inline_data_list(q, 2, buffers);
       }},
      {"an endless buffer",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_write(q, key, to);
         ibv_wr_set_inline_data_list(q, 2, huge);
       }},
      {"inline data for a READ",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_read(q, key, to);
         ibv_wr_set_inline_data(q, bytes.data(), 8);
       }},
      {"no data",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_write(q, key, to);
       }},
      {"data twice",
       [&](ibv_qp_ex* q) {
         ibv_wr_rdma_write(q, key, to);
         set_element(p.a);
         set_element(p.a);
       }},
      {"data for an operation without data",
       [&](ibv_qp_ex* q) {
         ibv_wr_local_inv(q, 1);
         set_element(p.a);
       }},
      {"an address for a connection",
       [&](ibv_qp_ex* q) {
         ibv_wr_send(q);
         ibv_wr_set_ud_addr(q, nullptr, 1, 1);
         set_element(p.a);
       }},
      {"an operation that was not asked for",
       [&](ibv_qp_ex* q) {
         ibv_wr_send_imm(q, 1);
         set_element(p.a);
       }},
      {"an operation that the device lacks",
       [&](ibv_qp_ex* q) {
         ibv_wr_send_tso(q, bytes.data(), 1, 1);
         set_element(p.a);
       }},
      {"a window of type 1",
       [&](ibv_qp_ex* q) {
         ibv_wr_bind_mw(q, first_kind, ibv_inc_rkey(first_kind->rkey), &how);
       }},
  };
  std::uint64_t id = 1;
  for (const auto& [name, build] : wrong) {
    for (const int place : {0, 1, 2}) { // of the wrong one among right ones
      INFO(name << " at " << place);
      ibv_wr_start(p.a.built);
      for (int i = 0; i < 3; ++i)
        if (i == place)
          build(p.a.built);
        else
          build_write(p.a, p.b, 99);
      CHECK(ibv_wr_complete(p.a.built) == EINVAL);
      check_clean(p.a, p.b, ++id);
    }
  }
  ibv_dealloc_mw(first_kind);
  // Data without a request; and an error of an earlier batch is forgotten.
  ibv_wr_start(p.a.built);
  set_element(p.a);
  CHECK(ibv_wr_complete(p.a.built) == EINVAL);
  ibv_wr_start(p.a.built);
  ibv_wr_rdma_write(p.a.built, key, to);
  ibv_wr_abort(p.a.built);
  CHECK(post(p.a, 1, [&](ibv_qp_ex*) { build_write(p.a, p.b, 1); }) == 0);
  CHECK(p.a.completion().wr_id == 1);
}

TEST_CASE("A datagram needs an address and data") {
  connected_pair p({.type = IBV_QPT_UD, .operations = datagram_operations});
  const owned_ah way = p.a.way_here();
  REQUIRE(p.b.receive(1) == 0);
  CHECK(post(p.a, 1, [&](ibv_qp_ex* q) {
          ibv_wr_send(q);
          set_element(p.a);
        }) == EINVAL);
  CHECK(post(p.a, 1, [&](ibv_qp_ex* q) {
          ibv_wr_send(q);
          ibv_wr_set_ud_addr(q, way.get(), p.b.qp->qp_num, test_q_key);
        }) == EINVAL);
  CHECK(post(p.a, 1, [&](ibv_qp_ex* q) {
          ibv_wr_send(q);
          set_element(p.a);
          ibv_wr_set_ud_addr(q, nullptr, p.b.qp->qp_num, test_q_key);
        }) == EINVAL);
  CHECK(p.a.is_quiet());
  CHECK(p.b.is_quiet());
}

TEST_CASE("A batch that does not fit into the queue is not posted") {
  connected_pair p({.operations = all_operations});
  const auto write = [&](int n) {
    return post(p.a, 1, [&](ibv_qp_ex*) {
      for (int i = 1; i <= n; ++i)
        build_write(p.a, p.b, static_cast<std::uint64_t>(i));
    });
  };
  CHECK(write(side::depth + 1) == ENOMEM);
  CHECK(p.a.is_quiet());
  for (int round = 0; round < 3; ++round) { // the ring wraps
    CHECK(write(side::depth) == 0);
    for (std::uint64_t i = 1; i <= side::depth; ++i)
      REQUIRE(p.a.completion().wr_id == i);
    CHECK(write(1) == 0);
    CHECK(p.a.completion().wr_id == 1);
  }
}

TEST_CASE("A queue pair that is not ready to send posts nothing, and one that has failed flushes") {
  const auto context = open_soft();
  side a(*context, {.operations = all_operations}), b(*context, {.operations = all_operations});
  const auto write = [&](std::uint64_t id) {
    return post(a, id, [&](ibv_qp_ex*) { build_write(a, b, id); });
  };
  CHECK(write(1) == EINVAL);
  REQUIRE(a.to(IBV_QPS_INIT) == 0);
  CHECK(write(2) == EINVAL);
  REQUIRE(a.to(IBV_QPS_RESET) == 0);
  connect(a, b);
  CHECK(write(3) == 0);
  CHECK(a.completion().wr_id == 3);
  REQUIRE(a.to(IBV_QPS_ERR) == 0);
  CHECK(write(4) == 0);
  const ibv_wc wc = a.completion();
  CHECK(wc.wr_id == 4);
  CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("Another thread posts before or after a batch, not within") {
  connected_pair p({.operations = all_operations});
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> begun{false};
    ibv_wr_start(p.a.built);
    build_write(p.a, p.b, 1);
    int error = -1;
    std::thread other([&] {
      begun = true;
      error = p.a.remote(3, IBV_WR_RDMA_WRITE, p.b);
    });
    while (!begun)
      std::this_thread::yield();
    for (int i = 0; i < 50; ++i)
      std::this_thread::yield(); // gives it a chance to do wrong
    build_write(p.a, p.b, 2);
    const int own = ibv_wr_complete(p.a.built);
    other.join();
    REQUIRE(own == 0);
    REQUIRE(error == 0);
    for (std::uint64_t i = 1; i <= 3; ++i)
      REQUIRE(p.a.completion().wr_id == i);
  }
}

TEST_CASE("Batches of many threads stay together") {
  constexpr std::uint64_t threads = 4, batches = 300, size = 3;
  connected_pair p({.operations = all_operations});
  const auto by_builders = [&](std::uint64_t first) {
    return post(p.a, first, [&](ibv_qp_ex*) {
      for (std::uint64_t i = 0; i < size; ++i)
        build_write(p.a, p.b, first + i);
    });
  };
  // More than fit into the send queue, and no more than fit into the completion queue.
  std::counting_semaphore<> credits(4 * side::depth / size);
  std::atomic<int> failed{0};
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      for (std::uint64_t n = 0; n < batches; ++n) {
        const std::uint64_t first = (t * batches + n) * size;
        if (n % 5 == 4) { // a batch that is not posted
          ibv_wr_start(p.a.built);
          build_write(p.a, p.b, ~0ull);
          ibv_wr_abort(p.a.built);
        }
        credits.acquire();
        int error = 0;
        while ((error = by_builders(first)) == ENOMEM)
          std::this_thread::yield(); // until requests have completed
        if (error != 0)
          ++failed;
      }
    });
  // All completions are taken, wrong ones included: the threads end once all is posted.
  std::array<std::uint64_t, threads> next{};
  std::uint64_t wrong = 0;
  for (std::uint64_t n = 0; n < threads * batches; ++n) {
    const ibv_wc first = p.a.completion();
    const std::uint64_t t = first.wr_id / (batches * size);
    if (first.status != IBV_WC_SUCCESS || t >= threads ||
        first.wr_id != (t * batches + next[t]++) * size)
      ++wrong;
    for (std::uint64_t i = 1; i < size; ++i)
      if (p.a.completion().wr_id != first.wr_id + i)
        ++wrong;
    credits.release();
  }
  CHECK(wrong == 0);
  for (std::thread& t : running)
    t.join();
  CHECK(failed == 0);
  CHECK(p.a.is_quiet());
}

TEST_CASE("A refused ibv_wr_start makes ibv_wr_complete fail, and posts nothing") {
  connected_pair p({.operations = all_operations});
  with_settings set("fail=post_send:2:eagain");
  const auto write = [&](std::uint64_t id) {
    return post(p.a, id, [&](ibv_qp_ex*) { build_write(p.a, p.b, id); });
  };
  CHECK(write(1) == 0);
  CHECK(write(2) == EAGAIN);
  CHECK(write(3) == 0);
  CHECK(soft_get_faults() == 1);
  CHECK(p.a.completion().wr_id == 1);
  CHECK(p.a.completion().wr_id == 3);
}

TEST_CASE("Faults, latency and delays of requests hold for built ones") {
  connected_pair p({.operations = all_operations});
  const auto write = [&](std::uint64_t id) {
    return post(p.a, id, [&](ibv_qp_ex*) { build_write(p.a, p.b, id); });
  };
  with_settings set("latency=3ms");
  ibv_wr_start(p.a.built);
  build_write(p.a, p.b, 1);
  build_write(p.a, p.b, 2);
  const auto built = clock::now();
  while (clock::now() - built < 5ms) // the latency begins with the post
    std::this_thread::yield();
  auto posted = clock::now();
  REQUIRE(ibv_wr_complete(p.a.built) == 0);
  for (int i = 0; i < 2; ++i) {
    CHECK(p.a.completion().status == IBV_WC_SUCCESS);
    CHECK(clock::now() - posted >= 3ms);
  }
  set.replace("delay=post_send:1:8ms");
  posted = clock::now();
  REQUIRE(write(1) == 0);
  CHECK(clock::now() - posted >= 8ms);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  set.replace("fail=write:2:rem_op");
  REQUIRE(write(1) == 0);
  REQUIRE(write(2) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.completion().status == IBV_WC_REM_OP_ERR);
}

TEST_CASE("A personality's limits hold for built requests") {
  with_settings set("bnxt_re");
  constexpr std::uint64_t operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
  connected_pair p({.operations = operations, .elements = 6, .inline_bytes = 96});
  const std::vector<ibv_sge> elements(7, p.a.element(0, 1));
  std::array<char, 97> bytes{};
  const auto write = [&](auto set_data) {
    return post(p.a, 1, [&](ibv_qp_ex* q) {
      ibv_wr_rdma_write(q, p.b.mr->rkey, p.b.element(0, 0).addr);
      set_data(q);
    });
  };
  const auto listed = [&](std::size_t n) {
    return write([&](ibv_qp_ex* q) { ibv_wr_set_sge_list(q, n, elements.data()); });
  };
  const auto copied = [&](std::size_t n) {
    return write([&](ibv_qp_ex* q) { ibv_wr_set_inline_data(q, bytes.data(), n); });
  };
  CHECK(listed(6) == 0);
  CHECK(listed(7) == EINVAL);
  CHECK(copied(96) == 0);
  CHECK(copied(97) == EINVAL);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
}
