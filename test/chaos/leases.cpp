// SPDX-License-Identifier: BSL-1.0
// Leases in a chaos run. A client requests memory of the server, fills it and hands it back. The
// server lends it to the client, and takes it back while the client reads it.
#include "chaos/common.hpp"

#include <cstring>
#include <variant>
#include <vector>

namespace chaos {
namespace {

using asio_rdma::access;
using asio_rdma::registered_buffer;
using asio_rdma::remote_region;

std::span<const std::byte> bytes_in(const registered_buffer& b) {
  return {static_cast<const std::byte*>(b.data()), b.size()};
}

// Of the bytes that the client writes to the lent memory.
label second(label l) {
  l.number ^= 1U << 31;
  return l;
}

asio::awaitable<bool> write(process& p, asio_rdma::connection& c, const label& l,
                            const remote_region& to) {
  const std::vector<std::byte> bytes = bytes_of(l);
  const auto [ec, n] = co_await c.async_write(asio::buffer(bytes), to, token);
  p.look(ec);
  co_return !ec;
}

asio::awaitable<error_code> read(process& p, asio_rdma::connection& c, const label& l,
                                 const remote_region& from, const registered_buffer& memory) {
  std::memset(memory.data(), 0, memory.size());
  const auto [ec, n] = co_await c.async_read(memory, from, token);
  p.look(ec);
  if (!ec) {
    compare_all(l, bytes_in(memory));
    ++p.mine.items;
    p.mine.bytes += n;
  }
  co_return ec;
}

asio::awaitable<bool> send_word(asio_rdma::connection& c) {
  const std::uint64_t word = 1;
  const auto [ec, n] = co_await c.async_send(asio::buffer(&word, sizeof word), token);
  co_return !ec;
}

} // namespace

asio::awaitable<bool> borrow(process& p, asio_rdma::connection& c, const label& l) {
  error_code no_memory;
  const registered_buffer back = p.pool.allocate(l.bytes, no_memory);
  if (no_memory)
    co_return false;
  const auto [refused, granted] = co_await c.async_request_memory(l.bytes, token);
  p.look(refused);
  if (refused || !co_await write(p, c, l, granted) || co_await read(p, c, l, granted, back))
    co_return false;
  const auto [not_given] = co_await c.async_send_region(granted, l.number, token);
  if (not_given)
    co_return false;

  const auto [none, lent] = co_await c.async_receive_region(token);
  p.look(none);
  if (none)
    co_return false;
  const auto* const region = std::get_if<remote_region>(&lent);
  if (region == nullptr || lent.tag != l.number || region->size() != l.bytes)
    report_wrong("a region that the server has lent");
  if (co_await read(p, c, l, *region, back) || !co_await write(p, c, second(l), *region) ||
      !co_await send_word(c))
    co_return false;
  // The server changes the memory when it has taken it back. No read may see that.
  error_code ec;
  while (!ec)
    ec = co_await read(p, c, second(l), *region, back);
  if (ec != asio_rdma::error::lease_revoked || !co_await send_word(c))
    co_return false;
  const auto [not_closed] = co_await c.async_close(token);
  co_return !not_closed;
}

asio::awaitable<void> lend(process& p, asio_rdma::connection& c, const label& l) {
  const auto [none, handed] = co_await c.async_receive_region(token);
  p.look(none);
  if (none)
    co_return;
  const auto* const memory = std::get_if<registered_buffer>(&handed);
  if (memory == nullptr || handed.tag != l.number)
    report_wrong("memory that the client has handed back");
  compare_all(l, bytes_in(*memory));
  const auto [not_lent] =
      co_await c.async_send_region(*memory, access::remote_read | access::remote_write,
                                   std::chrono::microseconds::max(), l.number, token);
  p.look(not_lent);
  if (not_lent)
    co_return;
  const auto [ec, behind_writes] = co_await c.async_receive(token);
  p.look(ec);
  if (ec)
    co_return;
  compare_all(second(l), bytes_in(*memory));
  const auto [not_revoked, end] = co_await c.async_revoke(*memory, 2s, token);
  p.look(not_revoked);
  if (not_revoked)
    co_return;
  compare_all(second(l), bytes_in(*memory));
  if (end.unconfirmed == 0) // otherwise siw may still answer a READ
    std::memset(memory->data(), 0, memory->size());
  ++p.mine.items;
  p.mine.bytes += memory->size();
  // A client whose reads have ended by the revocation says so.
  const auto [failure, last] = co_await c.async_receive(token);
  if (!failure && end.grants != 1)
    report_wrong("the number of loans that were revoked");
  co_await c.async_close(token);
}

} // namespace chaos
