// SPDX-License-Identifier: BSL-1.0
#include "device/connection/connection_support.hpp"
#include "device/support/pairs.hpp"

#include <cstring>

namespace test {

talk::talk(const connection_options& of_a, const connection_options& of_b,
           const memory_pool_options& memory)
    : pool(pd, memory) {
  a.open(pool, of_a);
  b.open(pool, of_b);
  connect_by_manager(*this);
}

talk::talk(const connection_options& of_each, const shared_receives_options& options) : pool(pd) {
  const shared_receives both(io, pool, options);
  a.open(both, of_each);
  b.open(both, of_each);
  connect_by_manager(*this);
}

bool talk::lives() {
  sent s;
  outcome<message> r;
  a.async_send(asio::buffer("still here"), s.handler());
  b.async_receive(r.handler());
  until([&] { return s.done() && r.done(); });
  return s.succeeded() && r.succeeded() && r.value.size() == 11;
}

void talk::exchange(std::size_t bytes) {
  const auto data = pattern(bytes, 3);
  sent s;
  outcome<message> r;
  a.async_send(asio::buffer(data), s.handler());
  b.async_receive(r.handler());
  until([&] { return s.done() && r.done(); });
  REQUIRE(s.succeeded());
  REQUIRE(r.succeeded());
}

namespace {

std::uint8_t value_at(std::size_t i, std::uint32_t seed) {
  return static_cast<std::uint8_t>((i * 2654435761u + seed * 40503u) >> 11);
}

} // namespace

std::vector<std::uint8_t> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::uint8_t> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    result[i] = value_at(i, seed);
  return result;
}

registered_buffer filled(const memory_pool& pool, std::size_t bytes, std::uint32_t seed) {
  registered_buffer b = pool.allocate(bytes);
  const auto values = pattern(bytes, seed);
  if (bytes != 0)
    std::memcpy(b.data(), values.data(), bytes);
  return b;
}

bool in_use(const registered_buffer& b) {
  return static_cast<bool>(buffer_access().try_begin_write(b));
}

bool is_pattern(const void* data, std::size_t bytes, std::uint32_t seed) {
  const auto* p = static_cast<const std::uint8_t*>(data);
  for (std::size_t i = 0; i < bytes; ++i)
    if (p[i] != value_at(i, seed))
      return false;
  return true;
}

} // namespace test
