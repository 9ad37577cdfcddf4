// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_FUZZ_INPUT_HPP
#define SOFT_TEST_WIRE_FUZZ_INPUT_HPP

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <poll.h>
#include <span>
#include <vector>

namespace soft::test {

using bytes = std::vector<std::byte>;

inline void require(bool holds, const char* what) noexcept {
  if (holds)
    return;
  std::fprintf(stderr, "fuzz target: %s\n", what);
  std::abort();
}

/// The limit of each wait for the device, which needs far less.
inline constexpr std::chrono::seconds device_patience{20};

/// Calls `f`, which returns -1 and sets errno if it fails, again after each EINTR. libFuzzer's
/// timer sends SIGALRM, by default once in 601 s, and its handler restarts no system call.
template <class Function>
auto uninterrupted(Function f) {
  auto result = f();
  while (result == -1 && errno == EINTR)
    result = f();
  return result;
}

/// Waits with poll(2). A signal does not end the wait. False: no descriptor is ready within `time`.
inline bool wait_for(std::span<pollfd> all,
                     std::chrono::milliseconds time = device_patience) noexcept {
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + time;
  return uninterrupted([&] {
           const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now());
           return poll(all.data(), all.size(),
                       static_cast<int>(std::max(left, std::chrono::milliseconds(0)).count()));
         }) > 0;
}
inline bool wait_for(int readable, std::chrono::milliseconds time = device_patience) noexcept {
  pollfd p{readable, POLLIN, 0};
  return wait_for(std::span(&p, 1), time);
}

/// The input, byte by byte. Zeros follow its end.
class reader {
public:
  explicit reader(std::span<const std::uint8_t> all) : rest_(all) {}
  bool at_end() const { return rest_.empty(); }
  unsigned byte() {
    if (rest_.empty())
      return 0;
    const unsigned b = rest_[0];
    rest_ = rest_.subspan(1);
    return b;
  }
  bytes take(std::size_t n) {
    bytes all(n);
    for (std::byte& b : all)
      b = static_cast<std::byte>(byte());
    return all;
  }

private:
  std::span<const std::uint8_t> rest_;
};

} // namespace soft::test

#endif
