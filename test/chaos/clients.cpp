// SPDX-License-Identifier: BSL-1.0
// The clients of a chaos run. Each goes round after round: it connects, sends, compares what comes
// back, and ends. A round that a fault ends is counted, and the next one begins.
#include "chaos/common.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace chaos {
namespace {

using namespace asio::experimental::awaitable_operators;

class client : process {
public:
  client(shared_ledger& s, std::size_t place, std::uint32_t seed)
      : process(s, place), number_(static_cast<std::uint32_t>(place)), random_(seed) {
    const role kind = role_of(place);
    spawn(rounds(kind == role::messages ? &client::messages
                 : kind == role::bytes  ? &client::bytes
                 : kind == role::memory ? &client::memory
                                        : &client::leases));
  }
  using process::run;

private:
  using round = asio::awaitable<bool> (client::*)();

  asio::awaitable<void> rounds(round one) {
    asio::steady_timer pause(io);
    for (;;) {
      const std::size_t server = (mine.rounds + mine.broken) % servers;
      server_ = &shared->server[server];
      const bool whole = co_await (this->*one)();
      (whole ? mine.rounds : mine.broken) += 1;
      mine.rounds_with[server] += whole;
      pause.expires_after(whole ? 1ms : 50ms);
      co_await pause.async_wait(token);
    }
  }

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  /// Small sizes are as frequent as those of hundreds of thousands of bytes.
  std::uint64_t any_size() { return sizeof(label) + below(1U << below(19)); }
  asio::ip::tcp::endpoint at(std::uint32_t port) const {
    static const auto address = asio::ip::make_address(std::getenv("CHAOS_SERVERS"));
    return {address, static_cast<std::uint16_t>(port)};
  }
  static asio_rdma::connect_options with(const label& l) {
    asio_rdma::connect_options result;
    result.data.resize(sizeof l);
    std::memcpy(result.data.data(), &l, sizeof l);
    return result;
  }

  /// Opens the object and connects it.
  template <class Object, class Options>
  asio::awaitable<bool> connect(Object& object, const Options& options, std::uint32_t port,
                                const asio_rdma::connect_options& how = {}) {
    error_code ec;
    object.open(pool, options, ec);
    look(ec);
    if (ec)
      co_return false;
    asio_rdma::connector connector(io);
    const auto [failure, info] = co_await connector.async_connect(object, at(port), how, token);
    look(failure);
    co_return !failure;
  }

  // --- Messages

  asio::awaitable<bool> messages() {
    asio_rdma::connection c(io);
    starts_ = server_->starts;
    if (!co_await connect(c, connection_options(), server_->messages_port))
      co_return false;
    std::vector<label> all(20 + below(100));
    const std::uint64_t one_way = below(3) == 0 ? ++one_way_rounds_ : 0;
    for (std::uint32_t i = 0; i < all.size(); ++i)
      all[i] = {number_, i, any_size(), one_way};
    if (one_way != 0)
      co_return co_await send(c, all) && co_await deliver(c, one_way << 32 | all.size());
    const auto [sent, received] = co_await (send(c, all) && receive(c, all));
    if (!sent || !received)
      co_return false;
    const auto [not_closed] = co_await c.async_close(token);
    co_return !not_closed;
  }
  // The server's program takes what a close reports as delivered, unless the server has ended.
  asio::awaitable<bool> deliver(asio_rdma::connection& c, std::uint64_t wanted) {
    const auto [not_closed] = co_await c.async_close(token);
    look(not_closed);
    if (not_closed)
      co_return false;
    ++mine.reports;
    asio::steady_timer pause(io);
    for (int i = 0; mine.taken_one_way != wanted; ++i) {
      if (server_->starts != starts_)
        co_return false;
      if (i == 60'000)
        report_wrong("messages that were reported as delivered");
      pause.expires_after(1ms);
      co_await pause.async_wait(token);
    }
    co_return true;
  }
  asio::awaitable<bool> send(asio_rdma::connection& c, const std::vector<label>& all) {
    for (const label& l : all) {
      const std::vector<std::byte> bytes = bytes_of(l);
      const auto [ec, n] = co_await c.async_send(asio::buffer(bytes), token);
      look(ec);
      if (ec) {
        c.close(); // so that the other half ends
        co_return false;
      }
    }
    co_return true;
  }
  asio::awaitable<bool> receive(asio_rdma::connection& c, const std::vector<label>& all) {
    for (const label& l : all) {
      const auto [ec, m] = co_await c.async_receive(token);
      look(ec);
      if (ec) {
        c.close();
        co_return false;
      }
      compare_all(l, m.bytes());
      ++mine.items;
      mine.bytes += m.size();
    }
    co_return true;
  }

  // --- Bytes

  asio::awaitable<bool> bytes() {
    asio_rdma::stream s(io);
    const label l{number_, ++mine.streams, any_size() + any_size() + any_size()};
    const std::vector<std::byte> out = bytes_of(l);
    if (!co_await connect(s, stream_options(), server_->bytes_port, with(l)))
      co_return false;
    const auto [written, read] = co_await (write(s, l, out) && this->read(s, l));
    if (written && read)
      ++mine.items;
    co_return written&& read;
  }
  asio::awaitable<bool> write(asio_rdma::stream& s, const label& l,
                              const std::vector<std::byte>& out) {
    const auto [ec, n] = co_await asio::async_write(s, asio::buffer(out), token);
    look(ec);
    check_end(l, mine, false, ec);
    error_code not_shut;
    if (!ec)
      s.shutdown(asio::socket_base::shutdown_send, not_shut);
    if (ec || not_shut) {
      mine.end_early(l.number);
      s.close();
      co_return false;
    }
    co_return true;
  }
  asio::awaitable<bool> read(asio_rdma::stream& s, const label& l) {
    std::vector<std::byte> back;
    std::array<std::byte, 16384> some;
    for (;;) {
      const auto [ec, n] = co_await s.async_read_some(asio::buffer(some), token);
      look(ec);
      back.insert(back.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
      if (!ec)
        continue;
      // Also what a fault has ended is a beginning of what was sent.
      if (back.size() > l.bytes)
        report_wrong("more bytes than were sent");
      if (back.size() > sizeof l)
        compare(l, sizeof l, std::span(back).subspan(sizeof l));
      mine.bytes += back.size();
      check_end(l, mine, back.size() == l.bytes, ec);
      if (ec == asio::error::eof && back.size() == l.bytes)
        co_return true;
      mine.end_early(l.number);
      s.close();
      co_return false;
    }
  }

  // --- Memory

  asio::awaitable<bool> memory() {
    using word = std::uint64_t;
    // The host may not have noticed the end of a node before, so each has a number of its own.
    asio_rdma::global_memory m(io, pool, static_cast<asio_rdma::node_id>(2 + below(4094)),
                               memory_options());
    const auto [failure, host] = co_await m.async_join(at(server_->nodes_port), token);
    look(failure);
    if (failure)
      co_return false;
    const auto [none, place] =
        co_await m.async_allocate<asio_rdma::nic_atomic<word>>(server_node, 0, token);
    look(none);
    if (none)
      co_return false;
    const auto [no_block, block] = co_await m.async_allocate<word>(server_node, 0, token);
    if (no_block)
      co_return false;
    const bool adds = dev.has_atomics() && m.atomics(server_node) != IBV_ATOMIC_NONE;
    word expected = 0;
    for (word i = 1; i <= 50; ++i) {
      const auto [not_written] =
          co_await m.async_write(block, i, asio_rdma::visibility::flushed, token);
      look(not_written);
      if (not_written)
        co_return false;
      const auto [not_read, value] = co_await m.async_read(block, token);
      if (not_read)
        co_return false;
      if (value != i)
        report_wrong("a word of global memory");
      if (adds) {
        const auto [not_added, before] = co_await m.async_fetch_add(place, word(3), token);
        if (not_added)
          co_return false;
        if (i != 1 && before != expected)
          report_wrong("a count in global memory");
        expected = before + 3;
      }
      ++mine.items;
      mine.bytes += sizeof value;
    }
    const auto [not_freed] = co_await m.async_free(place, token);
    const auto [block_not_freed] = co_await m.async_free(block, token);
    co_return !not_freed && !block_not_freed;
  }

  // --- Leases

  asio::awaitable<bool> leases() {
    asio_rdma::connection c(io);
    const label l{number_, below(1U << 31), any_size()};
    co_return co_await connect(c, connection_options(), server_->leases_port, with(l)) &&
        co_await borrow(*this, c, l);
  }

  const std::uint32_t number_;
  server_entry* server_ = nullptr; // of this round
  std::uint32_t starts_ = 0;       // of the server, when the connection began
  std::mt19937 random_;
  std::uint64_t one_way_rounds_ = random_() / 2; // the number of the last
};

} // namespace

int use(shared_ledger& shared, std::size_t place, std::uint32_t seed) {
  client(shared, place, seed).run();
  return 0;
}

} // namespace chaos
