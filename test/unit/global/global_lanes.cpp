// SPDX-License-Identifier: BSL-1.0
#include "global/global_lanes.hpp"

#include "catch.hpp"

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace test::global_lanes_tests {
namespace {

using namespace asio_rdma::detail;

std::list<global_lane> made(std::weak_ptr<lane_link>* watch = nullptr) {
  const auto link = std::make_shared<lane_link>(nullptr, nullptr);
  if (watch != nullptr)
    *watch = link;
  std::list<global_lane> result;
  result.push_back({link, 1, IBV_ATOMIC_NONE, {}, {}});
  return result;
}

} // namespace

TEST_CASE("a lane that was replaced exists while a thread looks, and no longer") {
  global_lanes lanes;
  std::weak_ptr<lane_link> old;
  auto first = made(&old), second = made();
  lanes.publish(7, first);
  CHECK(first.empty());
  std::optional<global_lanes::look> looking(std::in_place, lanes);
  const global_lane* const found = (*looking)[7];
  REQUIRE(found != nullptr);
  lanes.publish(7, second);
  CHECK(lanes.take_unused().empty());
  CHECK(found->link == old.lock());
  CHECK((*looking)[7] != found);
  looking.reset();
  CHECK(lanes.take_unused().size() == 1);
  CHECK(old.expired());
  CHECK(lanes.take_unused().empty());
}

TEST_CASE("a node has one lane, however often it is replaced") {
  global_lanes lanes;
  std::vector<std::weak_ptr<lane_link>> all(100);
  for (auto& watch : all) {
    auto next = made(&watch);
    lanes.publish(asio_rdma::max_node, next);
    lanes.take_unused();
  }
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    CHECK(all[i].expired());
  CHECK_FALSE(all.back().expired());
  CHECK(global_lanes::look(lanes)[0] == nullptr);
  CHECK(global_lanes::look(lanes)[asio_rdma::node_id(asio_rdma::max_node + 1)] == nullptr);
}

TEST_CASE("threads look for lanes that another thread replaces") {
  global_lanes lanes;
  auto first = made();
  lanes.publish(1, first);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      while (!stop) {
        const global_lanes::look looking(lanes);
        const global_lane* const l = looking[1];
        const std::shared_ptr<lane_link> link = l->link;
        wrong += link == nullptr || l->incarnation != 1;
      }
    });
  for (int i = 0; i < 20000; ++i) {
    auto next = made();
    lanes.publish(1, next);
    lanes.take_unused();
  }
  stop = true;
  for (std::thread& t : threads)
    t.join();
  CHECK(wrong == 0);
}

} // namespace test::global_lanes_tests
