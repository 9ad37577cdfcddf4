// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_WIRE_FUZZ_INPUT_HPP
#define SOFT_TEST_WIRE_FUZZ_INPUT_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
