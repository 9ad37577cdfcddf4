// SPDX-License-Identifier: BSL-1.0
#include "device/in_force.hpp"

#include "asio_rdma_soft.h"
#include "device/faults.hpp"
#include "engine/of_process.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace soft {

constinit std::atomic<std::uint32_t> attention{0};

namespace {

// Settings, and how many occasions each of their faults had.
struct version {
  explicit version(settings s)
      : set(std::move(s)), occasions(new std::atomic<std::uint64_t>[set.faults.size()]()) {}
  const settings set;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> occasions;
  std::atomic<unsigned long> struck{0};
};

const version& without_settings() {
  static const auto* const none = new version(settings{});
  return *none;
}
constinit std::atomic<version*> in_force{nullptr};

enum class loading { not_yet, done, failed } loaded = loading::not_yet;

// The changes of the settings. After fork(2) a child has the version that was in force, and changes
// of its own: a thread of the parent may have been in the middle of one.
struct all_changes {
  std::mutex changing;
  // Versions that were replaced stay: a thread may still use one.
  std::vector<std::unique_ptr<version>> versions;
};
all_changes& changes() { return of_process<all_changes>(); }

void put_in_force(settings s) {
  std::uint32_t bits = 0;
  for (const fault& f : s.faults)
    bits |= f.places;
  if (s.rate > 0 || s.latency.count() > 0 || s.jitter.count() > 0)
    bits |= is_timed;
  if (s.at_post)
    bits |= is_at_post;
  if (s.kind.late_placement.count() > 0)
    bits |= is_late;
  if (s.kind.copied_at_poll > 0)
    bits |= is_copied;
  auto& made = changes().versions.emplace_back(std::make_unique<version>(std::move(s)));
  const std::lock_guard all_or_nothing(forking());
  in_force.store(made.get());
  attention &= is_removed;
  attention |= bits;
}

// With `changing` locked.
int take_text(const char* text, const char* source) {
  settings s;
  const std::string_view whole = text != nullptr ? text : "";
  if (const auto error = parse(whole, s)) {
    const auto part = whole.substr(error->position, error->length);
    std::fprintf(stderr, "soft0: %s: '%.*s' at position %zu: %s (soft/README.md)\n", source,
                 static_cast<int>(part.size()), part.data(), error->position, error->what);
    return EINVAL;
  }
  put_in_force(std::move(s));
  return 0;
}

// Whether the `n`th occasion of a fault is one of a random part of all occasions. Depends on its
// arguments only, so that threads cannot change it.
bool is_chosen(std::uint64_t seed, std::size_t index, std::uint64_t n, double probability) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + index * 0xbf58476d1ce4e5b9 + n;
  for (int round = 0; round < 2; ++round) { // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53 < probability;
}

} // namespace

const settings& current() noexcept {
  const version* const v = in_force.load(std::memory_order_acquire);
  return v != nullptr ? v->set : without_settings().set;
}

int load_settings() {
  const std::lock_guard lock(changes().changing);
  if (loaded == loading::not_yet)
    loaded = take_text(std::getenv("ASIO_RDMA_SOFT"), "ASIO_RDMA_SOFT") == 0 ? loading::done
                                                                             : loading::failed;
  return loaded == loading::done ? 0 : EINVAL;
}

incident occasion(place at) noexcept {
  incident i;
  version* const v = in_force.load(std::memory_order_acquire);
  if (v == nullptr)
    return i;
  for (std::size_t index = 0; index != v->set.faults.size(); ++index) {
    const fault& f = v->set.faults[index];
    if ((f.places & bit_of(at)) == 0)
      continue;
    const std::uint64_t n = ++v->occasions[index];
    if (n < f.first || n > f.last ||
        (f.probability < 1 && !is_chosen(v->set.seed, index, n, f.probability)))
      continue;
    ++v->struck;
    switch (f.what) {
    case action::fail:
      i.failure = f.value;
      break;
    case action::delay:
      i.delay += f.time;
      break;
    case action::drop:
      i.drop = true;
      break;
    case action::flap:
      i.flap = f.time;
      break;
    case action::kill:
      i.kill = true;
      break;
    case action::event:
      i.event = f.value;
      break;
    }
  }
  return i;
}

} // namespace soft

using namespace soft;

extern "C" __attribute__((visibility("default"))) int soft_set(const char* text) {
  {
    const std::lock_guard lock(changes().changing);
    const bool environment = text == nullptr;
    if (const int error = take_text(environment ? std::getenv("ASIO_RDMA_SOFT") : text,
                                    environment ? "ASIO_RDMA_SOFT" : "soft_set"))
      return error;
    loaded = loading::done;
  }
  if (needs_attention(bit_of(place::now)))
    happen_now();
  return 0;
}

extern "C" __attribute__((visibility("default"))) unsigned long soft_get_faults(void) {
  const version* const v = in_force.load(std::memory_order_acquire);
  return v != nullptr ? v->struck.load() : 0;
}
