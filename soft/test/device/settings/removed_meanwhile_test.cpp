// SPDX-License-Identifier: BSL-1.0
// A device that is removed while a thread makes queue pairs. Its removal goes through all that
// there are.
#include "support/fixture.hpp"

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <thread>

using namespace soft::test;

namespace {

// A queue pair, and the objects that it is made of.
struct maker {
  maker() {
    a.send_cq = a.recv_cq = cq.get();
    a.cap.max_send_wr = a.cap.max_recv_wr = a.cap.max_send_sge = a.cap.max_recv_sge = 1;
    a.qp_type = IBV_QPT_RC;
  }
  owned_qp make() { return owned_qp(ibv_create_qp(pd.get(), &a)); }

  owned_context context = open_soft();
  owned_pd pd{ibv_alloc_pd(context.get())};
  owned_cq cq{ibv_create_cq(context.get(), 4, nullptr, nullptr, 0)};
  ibv_qp_init_attr a{};
};

// While it lives, the objects of a removed device can be destroyed (ibv_open_device(3)).
struct destroying_works {
  destroying_works() { setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1); }
  ~destroying_works() { unsetenv("RDMAV_ALLOW_DISASSOC_DESTROY"); }
};

constexpr const char* removed = "mlx5,event=now:device_fatal";

} // namespace

// The threads' only order is that of the device's lock, so ThreadSanitizer sees what the creation
// writes too late.
TEST_CASE("A queue pair is whole when a removal finds it") {
  const destroying_works allowed;
  with_settings set("mlx5");
  std::atomic<bool> is_made{false}, is_removed{false};
  std::jthread makes([&] {
    maker m;
    const owned_qp made = m.make();
    is_made.store(true, std::memory_order_relaxed);
    while (!is_removed.load())
      std::this_thread::yield();
  });
  while (!is_made.load(std::memory_order_relaxed))
    std::this_thread::yield();
  CHECK(soft_set(removed) == 0);
  is_removed = true;
}

TEST_CASE("A device can be removed while queue pairs are made") {
  constexpr int removals = 200;
  const destroying_works allowed;
  with_settings set("mlx5");
  std::barrier<> both(2);
  int refused = 0;
  std::jthread makes([&] {
    for (int n = 0; n != removals; ++n) {
      maker m;
      both.arrive_and_wait();
      while (m.make() != nullptr)
        continue;
      refused += errno == EIO;
      both.arrive_and_wait();
    }
  });
  for (int n = 0; n != removals; ++n) {
    both.arrive_and_wait();
    soft_set(removed);
    both.arrive_and_wait();
  }
  makes.join();
  CHECK(refused == removals);
}
