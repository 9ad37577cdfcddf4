// SPDX-License-Identifier: BSL-1.0
#include "verbs/guid.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <span>
#include <sys/stat.h>
#include <unistd.h>

namespace soft {
namespace {

// FNV-1a with 64 bits.
class hash {
public:
  void add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte b : bytes)
      value_ = (value_ ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3;
  }
  std::uint64_t value() const noexcept { return value_; }

private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// Kernels differ by the number of their boot (random(4)), and the network namespaces of a kernel by
// the number of their file (namespaces(7)). Without /proc all hosts have one GUID. A hardware
// address would not do: a namespace that has only the loopback interface has none.
__be64 make_guid() noexcept {
  hash h;
  if (const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); file >= 0) {
    std::byte text[64];
    const ssize_t n = read(file, text, sizeof(text));
    close(file);
    if (n > 0)
      h.add(std::span(text).first(static_cast<std::size_t>(n)));
  }
  if (struct stat s{}; stat("/proc/self/ns/net", &s) == 0)
    h.add(std::as_bytes(std::span(&s.st_ino, 1)));
  const std::uint64_t value = h.value();
  std::uint8_t bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  // IEEE's guidelines for EUI-64: administered locally, of one device.
  bytes[0] = static_cast<std::uint8_t>((bytes[0] & ~0x01) | 0x02);
  __be64 g = 0;
  std::memcpy(&g, bytes, sizeof(g));
  return g;
}

} // namespace

__be64 guid() noexcept {
  static const __be64 made = make_guid();
  return made;
}

} // namespace soft
