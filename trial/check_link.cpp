// SPDX-License-Identifier: BSL-1.0
// Connections, streams and global memory carry what they were given.
#include "check.hpp"
#include "memory.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <variant>

namespace trial {

namespace {

/// The far side sends each message back.
awaitable<void> echo_messages(session& s, std::vector<std::size_t> sizes) {
  const memory_pool pool(s.pd);
  connection c(s.io, pool);
  co_await s.link(c);
  unsigned seed = 0;
  for (const std::size_t bytes : sizes) {
    if (s.is_near()) {
      std::vector<char> text(bytes);
      fill(text.data(), bytes, ++seed);
      co_await c.async_send(asio::buffer(text), use_awaitable);
      const message m = co_await c.async_receive(use_awaitable);
      expect(m.size() == bytes, "a message of " + std::to_string(bytes) + " bytes came back with " +
                                    std::to_string(m.size()));
      compare(m.payload.data(), bytes, seed);
    } else {
      const message m = co_await c.async_receive(use_awaitable);
      co_await c.async_send(m.payload, use_awaitable);
    }
  }
  co_await c.async_close(use_awaitable);
}

awaitable<void> messages(session& s) {
  return echo_messages(s, {0, 1, 64, 240, 241, 5000, 8176, 8177, 131'072, 131'073});
}

awaitable<void> long_messages(session& s) { return echo_messages(s, {1'048'583, 20'000'003}); }

constexpr std::size_t stream_bytes = 3'000'017;

awaitable<void> write_pieces(stream& c) {
  std::vector<char> piece(100'000);
  std::size_t done = 0;
  for (std::size_t i = 1; done < stream_bytes; ++i) {
    const std::size_t n = std::min(i * 7919 % piece.size() + 1, stream_bytes - done);
    fill(piece.data(), n, 4, done);
    co_await asio::async_write(c, asio::buffer(piece.data(), n), use_awaitable);
    done += n;
  }
  c.shutdown(stream::shutdown_send);
}

/// Reads up to the end of the stream.
awaitable<void> read_pieces(stream& c) {
  std::vector<char> piece(70'000);
  std::size_t done = 0;
  try {
    for (;;) {
      const std::size_t n = co_await c.async_read_some(asio::buffer(piece), use_awaitable);
      compare(piece.data(), n, 4, done);
      done += n;
    }
  } catch (const system_error& e) {
    if (e.code() != asio::error::eof)
      throw;
  }
  expect(done == stream_bytes, "the stream ended after " + std::to_string(done) + " bytes");
}

awaitable<void> send_back(stream& c) {
  std::vector<char> piece(50'000);
  try {
    for (;;) {
      const std::size_t n = co_await c.async_read_some(asio::buffer(piece), use_awaitable);
      co_await asio::async_write(c, asio::buffer(piece.data(), n), use_awaitable);
    }
  } catch (const system_error& e) {
    if (e.code() != asio::error::eof)
      throw;
  }
  c.shutdown(stream::shutdown_send);
}

awaitable<void> bytes(session& s) {
  const memory_pool pool(s.pd);
  stream c(s.io, pool);
  co_await s.link(c);
  if (s.is_near())
    co_await (write_pieces(c) && read_pieces(c));
  else
    co_await send_back(c);
  co_await s.meet();
}

/// The peer reads registered memory by RDMA READ.
awaitable<void> registered_bytes(session& s) {
  constexpr std::size_t size = 4 << 20;
  const memory_pool pool(s.pd);
  stream c(s.io, pool);
  co_await s.link(c);
  const registered_buffer memory = pool.allocate(size);
  if (s.is_near()) {
    fill(memory.data(), size, 2);
    for (std::size_t done = 0; done < size;)
      done += co_await c.async_write_some(memory.slice(done), use_awaitable);
  } else {
    for (std::size_t done = 0; done < size;)
      done += co_await c.async_read_some(memory.slice(done), use_awaitable);
    compare(memory.data(), size, 2);
  }
  co_await s.meet();
}

awaitable<void> lent_memory(session& s) {
  constexpr std::size_t size = 100'000;
  const memory_pool pool(s.pd);
  connection_options options;
  options.remote_memory.bytes = size;
  connection c(s.io, pool, options);
  co_await s.link(c);
  std::vector<char> text(size), back(size);
  fill(text.data(), size, 3);
  if (s.is_near()) {
    const remote_region lent = co_await c.async_request_memory(size, use_awaitable);
    co_await c.async_write(asio::buffer(text), lent, use_awaitable);
    co_await c.async_read(asio::buffer(back), lent, use_awaitable);
    compare(back.data(), size, 3);
    co_await c.async_send_region(lent, use_awaitable);
    // Memory that the other side lends by itself.
    const auto arrived = co_await c.async_receive_region(use_awaitable);
    const auto* const other = std::get_if<remote_region>(&arrived);
    expect(other != nullptr && other->size() == size, "another region arrived than was lent");
    co_await c.async_read(asio::buffer(back), *other, use_awaitable);
    compare(back.data(), size, 3);
  } else {
    const auto returned = co_await c.async_receive_region(use_awaitable);
    const auto* const memory = std::get_if<registered_buffer>(&returned);
    expect(memory != nullptr && memory->size() == size, "another region came back than was lent");
    compare(memory->data(), size, 3);
    co_await c.async_send_region(*memory, use_awaitable);
  }
  co_await s.meet();
}

awaitable<void> use_global_memory(session& s, asio::ip::tcp::endpoint where,
                                  const memory_pool& pool) {
  constexpr std::size_t words = 5000;
  global_memory memory(s.io, pool, 2);
  const node_id host = co_await memory.async_join(where, use_awaitable);
  const auto place = co_await memory.async_allocate<std::uint64_t>(host, 0, words, use_awaitable);
  std::vector<std::uint64_t> text(words), back(words);
  fill(text.data(), words * 8, 5);
  co_await memory.async_write(place, asio::buffer(text), visibility::flushed, use_awaitable);
  co_await memory.async_read(place, asio::buffer(back), use_awaitable);
  compare(back.data(), words * 8, 5);
  co_await memory.async_write(place, std::uint64_t(12345), visibility::flushed, use_awaitable);
  const std::uint64_t value = co_await memory.async_read(place, use_awaitable);
  expect(value == 12345, "a word of global memory is not what was written");
  co_await s.tell(std::to_string(place.bits()));
  co_await s.hear();
}

awaitable<void> global(session& s) {
  const memory_pool pool(s.pd);
  if (s.is_near())
    co_return co_await use_global_memory(s, co_await s.hear_endpoint(), pool);
  global_memory memory(s.io, pool, 1);
  memory.host(1 << 20);
  memory.listen({s.address(), 0});
  co_await s.tell(memory.local_endpoint());
  const auto place = remote_ptr<std::uint64_t>::from_bits(std::stoull(co_await s.hear()));
  const std::uint64_t* const word = memory.local(place);
  expect(word != nullptr && *word == 12345, "a word of this node is not what was written");
  co_await s.tell(std::string("right"));
}

} // namespace

std::span<const check> link_checks() {
  static constexpr check checks[] = {
      {"messages", "", "messages of 0 bytes to 128 KiB, there and back", messages},
      {"long_messages", "", "messages of 1 MB and 20 MB, there and back", long_messages},
      {"stream", "", "3 MB of a stream, there and back", bytes},
      {"registered_stream", "", "4 MiB of registered memory by a stream", registered_bytes},
      {"lent_memory", "", "memory of the peer, requested and lent", lent_memory},
      {"global_memory", "", "reads and writes of a node's memory", global},
  };
  return checks;
}

} // namespace trial
