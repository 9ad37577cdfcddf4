// SPDX-License-Identifier: BSL-1.0
#include "device/in_force.hpp"

#include "asio_rdma_soft.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace soft {

constinit std::atomic<std::uint32_t> attention{0};

namespace {

constinit std::atomic<const settings*> in_force{nullptr};

std::mutex changing;
enum class loading { not_yet, done, failed } loaded = loading::not_yet;

// Settings that were replaced stay: a thread may still use them.
std::vector<std::unique_ptr<const settings>>& versions() {
  static auto* const all = new std::vector<std::unique_ptr<const settings>>;
  return *all;
}

void put_in_force(const settings& s) {
  std::uint32_t bits = 0;
  if (s.rate > 0 || s.latency.count() > 0)
    bits |= is_timed;
  auto& made = versions().emplace_back(std::make_unique<const settings>(s));
  in_force.store(made.get());
  attention = bits;
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
  put_in_force(s);
  return 0;
}

} // namespace

const settings& current() noexcept {
  static const settings none;
  const settings* const set = in_force.load(std::memory_order_acquire);
  return set != nullptr ? *set : none;
}

int load_settings() {
  const std::lock_guard lock(changing);
  if (loaded == loading::not_yet)
    loaded = take_text(std::getenv("ASIO_RDMA_SOFT"), "ASIO_RDMA_SOFT") == 0 ? loading::done
                                                                             : loading::failed;
  return loaded == loading::done ? 0 : EINVAL;
}

} // namespace soft

using namespace soft;

extern "C" __attribute__((visibility("default"))) int soft_set(const char* text) {
  const std::lock_guard lock(changing);
  const bool environment = text == nullptr;
  if (const int error = take_text(environment ? std::getenv("ASIO_RDMA_SOFT") : text,
                                  environment ? "ASIO_RDMA_SOFT" : "soft_set"))
    return error;
  loaded = loading::done;
  return 0;
}
