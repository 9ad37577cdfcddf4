// SPDX-License-Identifier: BSL-1.0
#include "client.hpp"

#include "background.hpp"
#include "file.hpp"
#include "peer_link.hpp"
#include "progress.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

namespace {

using asio::ip::tcp;
using asio_rdma::queue_pair;

// --- The server's address --------------------------------------------------------------------

struct host_and_port {
  std::string host;
  std::string port = std::to_string(protocol::default_port);
};

host_and_port parse(const std::string& address) {
  host_and_port result;
  std::string port;
  bool has_port = false;
  if (address.starts_with('[')) {
    const std::size_t end = address.find(']');
    has_port = end != std::string::npos && end + 1 < address.size();
    if (end == std::string::npos || (has_port && address[end + 1] != ':'))
      throw copy_error(address + ": not an address (such as 10.0.0.1:7471 or [fe80::1]:7471)");
    result.host = address.substr(1, end - 1);
    if (has_port)
      port = address.substr(end + 2);
  } else {
    const std::size_t colon = address.find(':');
    has_port = colon != std::string::npos && address.find(':', colon + 1) == std::string::npos;
    result.host = address.substr(0, has_port ? colon : std::string::npos);
    if (has_port)
      port = address.substr(colon + 1);
  }
  if (has_port) {
    std::uint16_t number = 0;
    const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (ec != std::errc() || end != port.data() + port.size() || number == 0)
      throw copy_error(address + ": '" + port + "' is not a port (1 to 65535)");
    result.port = port;
  }
  if (result.host.empty())
    throw copy_error(address + ": no host");
  return result;
}

asio::awaitable<std::vector<tcp::endpoint>> resolve(asio::io_context& io,
                                                    const std::string& address) {
  const host_and_port to = parse(address);
  tcp::resolver resolver(io);
  error_code ec;
  const auto results = co_await resolver.async_resolve(
      to.host, to.port, asio::redirect_error(asio::use_awaitable, ec));
  if (ec)
    throw copy_error(address + ": " + ec.message());
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : results)
    endpoints.push_back(entry.endpoint());
  co_return endpoints;
}

// The device is known only when the address has been resolved, so the addresses are tried one after
// the other.
asio::awaitable<std::shared_ptr<peer_link>> connect(asio::io_context& io,
                                                    const std::string& address) {
  const std::vector<tcp::endpoint> endpoints = co_await resolve(io, address);
  asio_rdma::connector connector(io);
  error_code ec = asio_rdma::error::no_device;
  for (const auto& description : asio_rdma::device::list()) {
    if (!description.port_active) {
      if (description.open_error)
        ec = description.open_error;
      continue;
    }
    const auto device = asio_rdma::device::open(description.name);
    const auto server = std::make_shared<peer_link>(io, device, "the server at " + address);
    server->start();
    co_await connector.async_connect(server->queue_pair(), endpoints,
                                     asio::redirect_error(asio::use_awaitable, ec));
    if (!ec)
      co_return server;
    server->close();
    if (ec != asio_rdma::error::wrong_device)
      break;
  }
  throw copy_error(address + ": " + ec.message());
}

// --- The copy --------------------------------------------------------------------------------

class upload : public std::enable_shared_from_this<upload> {
public:
  upload(asio::io_context& io, asio::thread_pool& pool, std::shared_ptr<peer_link> server,
         std::unique_ptr<source_file> file)
      : io_(io), pool_(pool), server_(std::move(server)), file_(std::move(file)), idle_(io) {}

  asio::awaitable<void> run(const send_options& options) {
    // Not a member: operations in flight keep this object alive until after the error has been
    // printed.
    progress shown(file_->size());
    protocol::offer offer;
    offer.size = file_->size();
    offer.chunk = options.chunk;
    offer.window = options.window;
    offer.name = file_->name();
    co_await server_->send(offer);
    where_ = co_await server_->receive_as<protocol::ready>();
    if (where_.chunk > offer.chunk || where_.window > offer.window)
      server_->violation();

    ring_.emplace(server_->domain(), where_.chunk, where_.window, asio_rdma::access::local_read);
    states_.assign(where_.window, {});
    asio::co_spawn(io_, fill(), [self = shared_from_this()](std::exception_ptr e) {
      if (e)
        self->fail(e);
    });
    std::exception_ptr failure;
    try {
      co_await listen(shown);
    } catch (...) {
      failure = std::current_exception();
    }
    stopped_ = true;
    idle_.cancel();
    if (failure_ || failure)
      std::rethrow_exception(failure_ ? failure_ : failure);
  }

private:
  struct slot_state {
    bool taken = false;
    bool written = false; // the device has ended its use of the slot's memory
    bool emptied = false; // the server's slot is free
    std::uint32_t bytes = 0;
  };

  // Reads the file ahead into free slots, and starts to write them to the server.
  asio::awaitable<void> fill() {
    std::uint64_t left = file_->size();
    while (left != 0) {
      const std::optional<std::uint32_t> slot = free_slot();
      if (!slot) {
        co_await wait();
        continue;
      }
      const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, where_.chunk));
      states_[*slot] = {true, false, false, bytes};
      co_await in_background(pool_, [&] { file_->read((*ring_)(*slot, bytes)); });
      if (stopped_)
        co_return;
      write(*slot, bytes);
      left -= bytes;
    }
    protocol::finish end;
    end.hash = hash_ = co_await in_background(pool_, [&] { return file_->finish(); });
    finished_ = true;
    if (!stopped_)
      server_->post(end);
  }

  // The message follows the bytes: when it arrives, they have arrived.
  void write(std::uint32_t slot, std::uint32_t bytes) {
    const asio_rdma::remote_buffer there{where_.address + std::uint64_t(slot) * where_.chunk, bytes,
                                         where_.rkey};
    server_->queue_pair().async_write(
        ring_->buffer(slot, bytes), there,
        [self = shared_from_this(), slot](error_code ec, std::size_t) {
          if (ec)
            return self->server_->fail(ec);
          self->states_[slot].written = true;
          self->release(slot);
        });
    protocol::filled message;
    message.slot = slot;
    message.bytes = bytes;
    server_->post(message);
  }

  // Receives messages until the server has stored the file.
  asio::awaitable<void> listen(progress& shown) {
    for (;;) {
      const protocol::message m = co_await server_->receive();
      if (const auto* emptied = std::get_if<protocol::emptied>(&m)) {
        if (emptied->slot >= where_.window || !states_[emptied->slot].taken ||
            states_[emptied->slot].emptied)
          server_->violation();
        states_[emptied->slot].emptied = true;
        shown.add(states_[emptied->slot].bytes);
        release(emptied->slot);
      } else if (std::holds_alternative<protocol::storing>(m) && finished_) {
        continue;
      } else if (const auto* stored = std::get_if<protocol::stored>(&m); stored && finished_) {
        shown.erase();
        if (stored->hash != hash_)
          throw copy_error(file_->name() + ": the SHA-256 of the server's copy differs");
        std::printf("sent %s: %s in %.3f s, %s, SHA-256 %s\n", file_->name().c_str(),
                    in_bytes(double(file_->size())).c_str(), shown.seconds(), shown.rate().c_str(),
                    to_hex(hash_).c_str());
        co_return;
      } else {
        server_->violation();
      }
    }
  }

  std::optional<std::uint32_t> free_slot() const {
    for (std::uint32_t slot = 0; slot < where_.window; ++slot)
      if (!states_[slot].taken)
        return slot;
    return {};
  }
  void release(std::uint32_t slot) {
    slot_state& s = states_[slot];
    if (s.written && s.emptied) {
      s.taken = false;
      idle_.cancel();
    }
  }
  asio::awaitable<void> wait() {
    idle_.expires_at(asio::steady_timer::time_point::max());
    error_code ec;
    co_await idle_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    if (stopped_)
      throw copy_error("stopped");
  }
  void fail(std::exception_ptr e) {
    if (!failure_ && !stopped_) {
      failure_ = std::move(e);
      server_->fail(asio::error::operation_aborted);
    }
  }

  asio::io_context& io_;
  asio::thread_pool& pool_;
  std::optional<slots> ring_;
  std::shared_ptr<peer_link> server_;
  std::unique_ptr<source_file> file_;
  protocol::ready where_;
  std::vector<slot_state> states_;
  asio::steady_timer idle_; // waits for a free slot
  bool stopped_ = false;
  bool finished_ = false;
  protocol::sha256 hash_{};
  std::exception_ptr failure_;
};

} // namespace

asio::awaitable<void> send_file(asio::io_context& io, asio::thread_pool& pool,
                                const send_options& options) {
  auto file = std::make_unique<source_file>(options.file);
  const std::shared_ptr<peer_link> server = co_await connect(io, options.address);
  const auto copy = std::make_shared<upload>(io, pool, server, std::move(file));
  std::optional<copy_error> failure;
  try {
    co_await copy->run(options);
  } catch (const std::exception& e) {
    failure = as_copy_error(e);
  }
  if (failure)
    co_await server->send_failure(*failure);
  server->close();
  if (failure)
    throw *failure;
}
