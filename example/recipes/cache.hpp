// SPDX-License-Identifier: BSL-1.0
// A cache whose entries the clients read by RDMA READ, without the server's program. The server
// lends an entry to each client that asks for it, and revokes the loans before the entry goes.
#pragma once

#include <asio_rdma/connection.hpp>
#include <asio_rdma/single_writer.hpp>
#include <boost/asio.hpp>

#include <map>
#include <optional>
#include <string>

namespace cache {

namespace asio = boost::asio;
using asio::awaitable, asio::deferred, asio_rdma::connection, asio_rdma::message;

struct value {
  std::uint32_t size = 0;
  std::array<char, 60> bytes{};
};
/// The value with its version and a check value: a reader finds out whether it is complete.
using slot = asio_rdma::single_writer<value>;

const auto as_result = asio::as_tuple(deferred);

/// The entries, in memory of the server. One thread at a time may use it.
class store {
public:
  explicit store(asio_rdma::memory_pool pool) : pool_(std::move(pool)) {}

  /// Inserts an entry, or replaces its value, which clients may be reading meanwhile.
  void put(const std::string& key, std::string_view text) {
    value v;
    if (text.size() > v.bytes.size())
      throw std::length_error("the value of " + key);
    v.size = static_cast<std::uint32_t>(text.size());
    std::copy(text.begin(), text.end(), v.bytes.begin());
    auto at = entries_.find(key);
    if (at == entries_.end()) {
      const auto memory = pool_.allocate(sizeof(slot));
      new (memory.data()) slot;
      at = entries_.emplace(key, memory).first;
    }
    static_cast<slot*>(at->second.data())->store(v);
  }

  /// Removes an entry. On completion no client can read its memory, which returns to the pool. A
  /// client that does not answer within the grace is disconnected if it reads the memory later.
  awaitable<bool> erase(std::string key) {
    const auto entry = entries_.extract(key); // so that it is not lent again
    if (entry.empty())
      co_return false;
    const auto executor = co_await asio::this_coro::executor;
    co_await asio_rdma::async_revoke(executor, entry.mapped(), std::chrono::seconds(1), deferred);
    co_return true;
  }

  const asio_rdma::registered_buffer* find(const std::string& key) const {
    const auto at = entries_.find(key);
    return at == entries_.end() ? nullptr : &at->second;
  }

private:
  asio_rdma::memory_pool pool_;
  std::map<std::string, asio_rdma::registered_buffer> entries_;
};

/// Lends entries to one client until it closes or is gone. A request is a key; its number is the
/// tag of the loan and the immediate data of the answer.
inline awaitable<void> serve(connection client, const store& entries) {
  for (;;) {
    const auto [ec, request] = co_await client.async_receive(as_result);
    if (ec == asio::error::eof)
      co_await client.async_close(as_result);
    if (ec || !request.immediate)
      co_return;
    bool lent = false;
    if (const auto* entry = entries.find(std::string(request.text()))) {
      const auto memory = *entry;
      const auto [ec2] = co_await client.async_send_region(memory, *request.immediate, as_result);
      lent = !ec2; // otherwise the entry went meanwhile, or the client is gone
    }
    const auto answer = asio::buffer(lent ? "lent" : "none", 4);
    co_await client.async_send(answer, *request.immediate, as_result);
  }
}

/// A client. One look-up at a time.
class reader {
public:
  explicit reader(connection c) : server_(std::move(c)), pause_(server_.get_executor()) {}

  // [get]
  /// The first look-up of a key asks the server. The next ones read the memory of the entry, until
  /// the server takes it back.
  awaitable<std::optional<std::string>> get(std::string key) {
    for (;;) {
      auto known = lent_.find(key);
      if (known == lent_.end()) {
        const auto region = co_await ask(key);
        if (!region.is_open())
          co_return std::nullopt;
        known = lent_.emplace(key, region).first;
      }
      slot::image image;
      const auto target = asio::buffer(&image, sizeof image);
      const auto [ec, n] = co_await server_.async_read(target, known->second, as_result);
      if (ec == asio_rdma::error::lease_revoked) { // the entry has gone, and may be there again
        lent_.erase(known);
        continue;
      }
      if (ec)
        throw boost::system::system_error(ec);
      if (image.is_whole()) {
        const value v = image.contents().value;
        co_return std::string(v.bytes.data(), std::min<std::size_t>(v.size, v.bytes.size()));
      }
      pause_.expires_after(std::chrono::microseconds(20)); // the server is storing the value
      co_await pause_.async_wait(deferred);
    }
  }
  // [get]
  awaitable<void> close() { co_await server_.async_close(deferred); }
  std::uint32_t requests() const { return requests_; }

private:
  awaitable<asio_rdma::remote_region> ask(std::string key) {
    const std::uint32_t id = ++requests_;
    co_await server_.async_send(asio::buffer(key), id, deferred);
    message answer;
    do // the answer to a look-up that was cancelled may come first
      answer = co_await server_.async_receive(deferred);
    while (answer.immediate != id);
    while (answer.text() == "lent") {
      const auto loan = co_await server_.async_receive_region(deferred);
      if (loan.tag == id)
        co_return std::get<asio_rdma::remote_region>(loan);
    }
    co_return asio_rdma::remote_region();
  }

  connection server_;
  asio::steady_timer pause_;
  std::map<std::string, asio_rdma::remote_region> lent_;
  std::uint32_t requests_ = 0;
};

} // namespace cache
