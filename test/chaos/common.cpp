// SPDX-License-Identifier: BSL-1.0
#include "chaos/common.hpp"

#include <algorithm>
#include <asio_rdma/statistics.hpp>
#include <asio_rdma_soft.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace chaos {

void report_wrong(const char* what) {
  std::fprintf(stderr, "chaos: wrong: %s\n", what);
  std::fflush(stderr);
  std::_Exit(wrong);
}

void compare(const label& l, std::uint64_t at, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes)
    if (b != byte_at(l.seed(), at++))
      report_wrong("a byte");
}

std::vector<std::byte> bytes_of(const label& l) {
  std::vector<std::byte> result(l.bytes);
  std::memcpy(result.data(), &l, sizeof l);
  for (std::size_t i = sizeof l; i < result.size(); ++i)
    result[i] = byte_at(l.seed(), i);
  return result;
}

void compare_all(const label& l, std::span<const std::byte> bytes) {
  if (bytes.size() != l.bytes || std::memcmp(bytes.data(), &l, sizeof l) != 0)
    report_wrong("the label or the length of bytes");
  compare(l, sizeof l, bytes.subspan(sizeof l));
}

process::process(shared_ledger& s, std::size_t place) : shared(s), mine(s->of[place]) {
  mine.early = mine.resident = 0;
  mine.ticks = 0;
  tick();
}

void process::look(const error_code& ec) {
  if (ec == asio_rdma::error::device_removed || ec == asio_rdma::error::device_fatal)
    std::_Exit(device_gone);
}

void process::tick() {
  // The software device has this function; a device of the kernel has no faults.
  static const auto set = reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "soft_set"));
  if (const std::uint32_t wanted = mine.wanted; wanted != mine.taken) {
    if (set != nullptr && set(mine.settings.data()) != 0)
      report_wrong("settings that the device does not know");
    mine.taken = wanted;
  }
  pool.trim();
  mine.resident = test::resident_bytes();
  if (&mine == &shared->of[kept])
    count_objects();
  if (&mine == &shared->of[kept] && shared->tell) {
    print_what_is_left();
    shared->tell = false;
  }
  if (++mine.ticks == 150) // three seconds
    mine.early = mine.resident.load();
  timer_.expires_after(20ms);
  timer_.async_wait([this](error_code) { tick(); });
}

void process::count_objects() {
  static const auto get =
      reinterpret_cast<void (*)(soft_resources*)>(::dlsym(RTLD_DEFAULT, "soft_get_resources"));
  soft_resources r{};
  if (get != nullptr)
    get(&r);
  const std::filesystem::directory_iterator all("/proc/self/fd");
  const std::uint64_t now[] = {std::uint64_t(r.domains),
                               std::uint64_t(r.regions),
                               std::uint64_t(r.windows),
                               std::uint64_t(r.completion_queues),
                               std::uint64_t(r.shared_receive_queues),
                               std::uint64_t(r.queue_pairs),
                               std::uint64_t(r.ids),
                               std::uint64_t(std::distance(begin(all), end(all)))};
  std::copy(std::begin(now), std::end(now), mine.objects.begin());
}

void process::print_what_is_left() {
  std::printf("kept server: %s\n", asio_rdma::to_json(asio_rdma::statistics(io)).c_str());
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored; // the descriptor of the iterator
    const auto what = std::filesystem::read_symlink(descriptor.path(), ignored);
    std::printf("  %s %s\n", descriptor.path().filename().c_str(), what.c_str());
  }
  std::fflush(stdout);
}

} // namespace chaos
