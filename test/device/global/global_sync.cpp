// SPDX-License-Identifier: BSL-1.0
// Counters, barriers and values of a single writer.
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/global_counter.hpp>
#include <asio_rdma/single_writer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace test::global_sync_tests {
namespace {

using word = std::uint64_t;

template <std::size_t Words>
struct uniform {
  uniform() = default;
  explicit uniform(word w) { words.fill(w); }
  bool is_whole() const {
    return std::all_of(words.begin(), words.end(), [&](word w) { return w == words[0]; });
  }
  std::array<word, Words> words{};
};

using value = uniform<32>;
using image = single_writer<value>::image;
static_assert(!remote_readable<single_writer<value>>); // only async_load can read it
static_assert(!std::is_copy_constructible_v<single_writer<value>>);

} // namespace

TEST_CASE("a mixture of two values is never taken for one") {
  single_writer<value> w;
  std::vector<image> images;
  const auto bytes = [&] {
    image i;
    std::memcpy(&i, static_cast<const void*>(&w), sizeof i);
    return i;
  };
  CHECK(bytes().is_whole()); // zeroed memory is a whole value
  for (word i = 1; i < 50; ++i) {
    images.push_back(bytes());
    w.store(value(i % 3 == 0 ? i - 1 : i)); // sometimes the same value again
    CHECK(w.try_load()->version == i);
  }
  const std::size_t words = sizeof(image) / 8;
  int mixtures = 0;
  for (std::size_t i = 1; i < images.size(); ++i) {
    CHECK(images[i].is_whole());
    for (std::size_t split = 1; split < words; ++split)
      for (const bool first : {true, false}) {
        image mixed = images[first ? i : i - 1];
        std::memcpy(&mixed, &images[first ? i - 1 : i], split * 8);
        if (mixed.words == images[i].words && mixed.version == images[i].version &&
            mixed.check == images[i].check)
          continue; // all differing bytes are of one value
        if (mixed.words == images[i - 1].words && mixed.version == images[i - 1].version &&
            mixed.check == images[i - 1].check)
          continue;
        ++mixtures;
        CHECK_FALSE(mixed.is_whole());
      }
  }
  CHECK(mixtures > 2000);
  image bad = bytes();
  bad.words[7] ^= 1;
  CHECK_FALSE(bad.is_whole());
}

TEST_CASE("readers of a single writer see no torn value") {
  world w;
  const auto p = w.make<single_writer<value>>();
  single_writer<value>* const here = w.host.local(p);
  REQUIRE(here != nullptr);
  std::jthread writer([&](const std::stop_token& stop) {
    for (word i = 1; !stop.stop_requested(); ++i)
      here->store(value(i));
  });
  int torn = 0, naive_torn = 0, backwards = 0;
  word last = 0;
  constexpr int reads = 3000, most = 1'000'000;
  int done = 0;
  std::function<void()> careful = [&] {
    async_load(w.guest, p, [&](error_code ec, const versioned<value>& v) {
      if (ec || !v.value.is_whole() || v.value.words[0] != v.version)
        ++torn;
      if (v.version < last)
        ++backwards;
      last = v.version;
      if (++done < reads)
        careful();
    });
  };
  int naive_done = 0;
  std::function<void()> naive = [&] {
    w.guest.async_read(p.cast<image>(), [&](error_code, const image& i) {
      if (!i.contents().value.is_whole())
        ++naive_torn;
      if (++naive_done < reads || (naive_torn == 0 && naive_done < most))
        naive();
    });
  };
  careful();
  naive();
  w.until([&] {
    return done == reads && naive_done >= reads && (naive_torn != 0 || naive_done == most);
  });
  writer.request_stop();
  writer.join();
  std::printf("single writer: %d of %d naive reads torn, %d of %d of its own\n", naive_torn,
              naive_done, torn, reads);
  CHECK(naive_torn != 0); // otherwise the test proves nothing
  CHECK(torn == 0);
  CHECK(backwards == 0);
  CHECK(last != 0);
  CHECK(here->try_load()->version >= last);
}

TEST_CASE("a load of a value whose writer has died is repeated until it is cancelled") {
  world w;
  const auto p = w.make<single_writer<value>>();
  CHECK(!w.write(p.cast<image>().member<&image::check>(), word(1))); // as if the writer had died
  asio::cancellation_signal stop;
  outcome<versioned<value>> load;
  async_load(w.guest, p, asio::bind_cancellation_slot(stop.slot(), load.handler()));
  for (int i = 0; i < 20; ++i) {
    CHECK(w.read(p.cast<image>()).succeeded());
    CHECK(!load.done());
  }
  stop.emit(asio::cancellation_type::total);
  w.until([&] { return load.done(); });
  CHECK(load.ec == asio::error::operation_aborted);
  w.host.local(p)->store(value(4));
  CHECK(w.ask<versioned<value>>([&](auto h) { async_load(w.guest, p, h); }).value.value.words[3] ==
        4);
}

TEST_CASE("a counter counts") {
  world w;
  counter c(w.guest, w.make<counter_word>());
  if (!w.dev.has_atomics())
    return not_on_this_device("atomic operations");
  CHECK(w.ask<word>([&](auto h) { c.async_add(5, h); }).value == 0);
  CHECK(w.ask<word>([&](auto h) { c.async_add(1, h); }).value == 5);
  CHECK(w.ask<word>([&](auto h) { c.async_get(h); }).value == 6);
}

TEST_CASE("a barrier has at least one party") {
  world w;
  using point = barrier<asio::any_io_executor>;
  CHECK_THROWS_AS(point(w.guest, remote_ptr<counter_word>(host_id, 0, 64), 0), system_error);
}

TEST_CASE("no party passes a barrier before all have arrived") {
  world w;
  if (!w.dev.has_atomics())
    return not_on_this_device("atomic operations");
  const auto at = w.make<counter_word>();
  constexpr int parties = 3, rounds = 20;
  std::vector<std::unique_ptr<global_memory>> nodes;
  for (int i = 0; i < parties; ++i) {
    nodes.push_back(std::make_unique<global_memory>(w.io, w.pool, node_id(100 + i)));
    REQUIRE(!w.join(*nodes.back()).ec);
  }
  std::vector<barrier<asio::any_io_executor>> sides;
  for (const auto& n : nodes)
    sides.emplace_back(*n, at, parties);
  for (int round = 0; round < rounds; ++round) {
    std::array<outcome<void>, parties> passed;
    for (int i = 0; i < parties; ++i) {
      for (int j = 0; j < i; ++j)
        CHECK(!passed[std::size_t(j)].done());
      sides[std::size_t(i)].async_arrive_and_wait(passed[std::size_t(i)].handler());
      if (i != parties - 1)
        CHECK(w.read(at).succeeded()); // another operation completes meanwhile
    }
    w.until([&] {
      return std::all_of(passed.begin(), passed.end(), [](auto& p) { return p.done(); });
    });
    for (const auto& p : passed)
      CHECK(p.succeeded());
  }
  CHECK(w.read(at).value == parties * rounds);
  // A party that waits in vain can be cancelled.
  asio::cancellation_signal stop;
  outcome<void> alone;
  sides[0].async_arrive_and_wait(asio::bind_cancellation_slot(stop.slot(), alone.handler()));
  while (w.read(at).value == parties * rounds)
    continue;
  stop.emit(asio::cancellation_type::partial);
  w.until([&] { return alone.done(); });
  CHECK(alone.ec == asio::error::operation_aborted);
}

TEST_CASE("exchanges that collide lose nothing") {
  world w;
  if (!w.dev.has_atomics())
    return not_on_this_device("atomic operations");
  const auto p = w.make<nic_atomic<word>>();
  constexpr int chains = 8, each = 50;
  int done = 0;
  word next = 0, sum = 0; // each value that was put in comes out once, except the last
  std::function<void(int)> chain = [&](int left) {
    w.guest.async_exchange(p, ++next, [&, left](error_code ec, word before) {
      CHECK(!ec);
      sum += before;
      ++done;
      if (left > 1)
        chain(left - 1);
    });
  };
  for (int i = 0; i < chains; ++i)
    chain(each);
  w.until([&] { return done == chains * each; });
  CHECK(sum + w.read(p).value == next * (next + 1) / 2);
}

} // namespace test::global_sync_tests
