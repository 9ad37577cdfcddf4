// SPDX-License-Identifier: BSL-1.0
// Links on shared receives that come and go, with an adapter that drops the completions of a
// destroyed queue pair: no receive is lost.
#include "device/adapters/adapter.hpp"
#include "device/adapters/every_receive.hpp"
#include "device/link/shared_crowd.hpp"
#include "link/shared_receives_impl.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

namespace test::many_links_tests {
namespace {

// Completions are dropped as by mlx5, in less time. Each queue pair takes a receive and does not
// fill it.
constexpr const char* quick = "mlx5,late_last_wqe=20us,create=0,destroy=0,taken_receives=1";

// Opens a link, begins messages in both directions, and ends it in the middle of them.
void come_and_go(talks& c, std::minstd_rand& random) {
  asio_rdma::connection a(c.io, c.of_a), b(c.io, c.of_b);
  c.connect(a, b);
  std::deque<sent> sends;
  std::deque<outcome<message>> receives;
  const auto text = pattern(3000, 1);
  const auto begin = [&](asio_rdma::connection& from, asio_rdma::connection& to) {
    for (auto n = random() % 4; n != 0; --n)
      from.async_send(asio::buffer(text), sends.emplace_back().handler());
    for (auto n = random() % 3; n != 0; --n)
      to.async_receive(receives.emplace_back().handler());
  };
  begin(a, b);
  begin(b, a);
  for (auto n = random() % 8; n != 0; --n) {
    c.io.restart();
    c.io.poll_one();
  }
  outcome<void> closed;
  // The first end is noticed by the other side, or both sides end at once.
  const auto how = random() % 3;
  if (how == 0) {
    a.async_close(closed.handler());
  } else {
    outcome<void> noticed;
    b.async_wait_disconnect(noticed.handler());
    a.close();
    if (how == 1)
      c.until([&] { return noticed.done(); });
    b.close();
    c.until([&] { return noticed.done(); });
  }
  b.close();
  a.close();
  c.until([&] {
    const auto done = [](const auto& each) {
      return each.done();
    };
    return std::all_of(sends.begin(), sends.end(), done) &&
           std::all_of(receives.begin(), receives.end(), done) && (how != 0 || closed.done());
  });
}

void come_and_go(int links, unsigned seed) {
  INFO("seed " << seed);
  const adapter a(quick);
  std::minstd_rand random(seed);
  talks c(1, few(256));
  outcome<message> work; // of the context
  c.a[0].async_receive(work.handler());
  const auto of_a = c.of_a.statistics(), of_b = c.of_b.statistics();
  const auto before = device_objects();
  for (int n = 0; n < links; ++n)
    come_and_go(c, random);
  const auto is_as_before = [](const shared_receives_statistics& was, const shared_receives& now) {
    const auto s = now.statistics();
    return s.links == was.links && s.posted == was.posted && s.room == was.room && s.missing == 0;
  };
  c.until([&] { return is_as_before(of_a, c.of_a) && is_as_before(of_b, c.of_b); });
  std::printf("%d links, %u and %u receives before, %u and %u after\n", links, of_a.posted,
              of_b.posted, c.of_a.statistics().posted, c.of_b.statistics().posted);
  c.until([&] { return device_objects() == before; });
  for (const shared_receives* r : {&c.of_a, &c.of_b})
    CHECK(count_receives(c.io, c.pd, c.dev, r->impl()->queue(), 257) == r->statistics().posted);
  c.carries(c.a[0], c.b[0], 5000, 7);
  c.b[0].async_send(asio::buffer("end"), [](error_code, std::size_t) {});
  c.until([&] { return work.done(); });
  work.value = {}; // its memory is the pool's
  gives_everything_back(c);
}

} // namespace

TEST_CASE("links that end at any moment leave their shared receives", "[h1]") {
  come_and_go(300, 1);
}

TEST_CASE("100,000 links leave their shared receives", "[.long][h1]") { come_and_go(100'000, 1); }

} // namespace test::many_links_tests
