// SPDX-License-Identifier: BSL-1.0
#include "hostile/siege.hpp"
#include "device/support/long_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <sys/resource.h>
#include <thread>

namespace test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t most_growth = 16 << 20, most_heap_growth = 512 << 10;
constexpr auto longest_wait = 1000ms, longest_connect = 500ms;
constexpr auto longest_busy = 100ms, longest_gap = 1000ms;
// Sanitizers slow the library down.
constexpr int slower = is_sanitized ? 5 : 1;
// In the lab, the processor time of a thread includes time in which the machine ran something else
// in place of the lab.
int busier() { return is_kernels(open_device()) ? 3 : slower; }
int later() { return is_kernels(open_device()) ? 3 : slower; }

std::uint64_t in_ns(std::chrono::nanoseconds t) { return static_cast<std::uint64_t>(t.count()); }
std::string in_ms(const good_clients::duration& d) {
  return std::to_string(d.ns / 1'000'000) + " ms (" + std::to_string(d.ticks) + " ticks)";
}

} // namespace

siege::many_descriptors::many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

siege::siege() {
  until([&] { return report_->state != hostile_report::starting; }, "the victim's start");
  REQUIRE(lives());
  clients_.emplace(report_);
  served(3); // so that the victim has what its clients need
  measure();
  resident_ = report_->resident;
  heap_ = report_->heap;
  clients_->forget_waits();
  report_->busy_ns = report_->gap_ns = report_->most_pooled = report_->most_handshakes = 0;
}

void siege::until(const std::function<bool()>& condition, const char* what) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (victim_.has_ended())
      throw std::runtime_error(std::string("the victim has ended; ") + what);
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error(std::string("not within a minute: ") + what);
    std::this_thread::sleep_for(1ms);
  }
}

void siege::served(std::uint64_t rounds) {
  const std::uint64_t wanted = clients_->rounds() + rounds;
  until([&] { return clients_->rounds() >= wanted || !clients_->failure().empty(); },
        "the service of good clients");
}

void siege::measure() {
  const std::uint64_t wish = ++report_->measure;
  until([&] { return report_->measured == wish; }, "a measurement");
}

void siege::check(int more_busy) {
  served();
  CHECK(clients_->failure() == "");
  const std::uint64_t locked = report_->locked;
  until([&] { return report_->locked > locked + 1; }, "a lock that no peer attacks");
  // Memory of peers that have ended is given back soon.
  std::uint64_t growth = 0, heap = 0;
  for (int i = 0; i < 100; ++i) {
    measure();
    growth = std::max(resident_, report_->resident.load()) - resident_;
    heap = std::max(heap_, report_->heap.load()) - heap_;
    if (growth <= most_growth && heap <= most_heap_growth)
      break;
    std::this_thread::sleep_for(100ms);
  }
  const auto wait = clients_->longest_wait(), connect = clients_->longest_connect();
  WARN("resident " << (resident_ >> 10) << " KiB, then " << (growth >> 10) << " KiB more, "
                   << (heap >> 10) << " KiB of the heap; at most " << (report_->most_pooled >> 10)
                   << " KiB of the pool in use; busy for " << report_->busy_ns / 1000
                   << " us at most, between two ticks " << report_->gap_ns / 1000
                   << " us; longest wait " << in_ms(wait) << ", to be connected "
                   << in_ms(connect));
  CHECK((is_sanitized || growth <= most_growth));
  CHECK((is_sanitized || heap <= most_heap_growth));
  CHECK(wait.ticks <= std::uint64_t(longest_wait / hostile_report::tick));
  CHECK(wait.ns <= in_ns(longest_wait * later()));
  CHECK(connect.ticks <= std::uint64_t(longest_connect / hostile_report::tick));
  CHECK(connect.ns <= in_ns(longest_connect * later()));
  CHECK(report_->busy_ns <= in_ns(longest_busy * more_busy * busier()));
  CHECK(report_->gap_ns <= in_ns(longest_gap * slower));
  CHECK(report_->damaged == 0);
  CHECK(report_->unadmitted == 0);
  CHECK(lives());
}

std::size_t repetitions(std::size_t usual) {
  const char* const times = std::getenv("ASIO_RDMA_HOSTILE");
  return times != nullptr ? usual * std::strtoull(times, nullptr, 10) : usual;
}

std::mt19937 seeded(std::uint32_t seed) {
  if (const char* const other = std::getenv("ASIO_RDMA_HOSTILE_SEED"))
    seed = static_cast<std::uint32_t>(std::strtoul(other, nullptr, 10));
  WARN("seed " << seed);
  return std::mt19937(seed);
}

} // namespace test
