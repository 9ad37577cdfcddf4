// SPDX-License-Identifier: BSL-1.0
#include "server.hpp"

#include "../one_line.hpp"
#include "background.hpp"
#include "file.hpp"
#include "peer_link.hpp"
#include "progress.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <optional>
#include <sstream>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using asio::ip::tcp;

// The most memory that one client can make this side register.
constexpr std::uint32_t max_ring = 64 * 1024 * 1024;

/// The path of a received file. `name` has been checked: it is a name within a folder.
fs::path path_for(const fs::path& target, const std::string& name) {
  return fs::is_directory(target) ? target / name : target;
}

void check_target(const fs::path& target) {
  if (target.empty())
    throw copy_error("the target is empty: give a folder, or a name for the received file");
  std::error_code ignored; // access() finds the errors that matter
  const bool folder = fs::is_directory(target, ignored);
  const fs::file_status there = fs::symlink_status(target, ignored); // do not replace a link
  if (!folder && fs::exists(there) && !fs::is_regular_file(there))
    throw copy_error(target.string() + ": neither a folder nor a regular file");
  const fs::path where = folder ? target : target.has_parent_path() ? target.parent_path() : ".";
  if (::access(where.c_str(), W_OK | X_OK) != 0)
    throw copy_error(where.string() + ": " + std::strerror(errno));
}

/// The devices through which clients have connected, each opened once.
class devices {
public:
  const asio_rdma::device& find(const std::string& name) {
    const auto known = std::find_if(open_.begin(), open_.end(),
                                    [&name](const auto& d) { return d.name() == name; });
    return known != open_.end() ? *known : open_.emplace_back(asio_rdma::device::open(name));
  }

private:
  std::vector<asio_rdma::device> open_;
};

// --- One copy --------------------------------------------------------------------------------

// Flushing a large file to a slow disk may take longer than the client's patience, so `storing` is
// sent meanwhile.
asio::awaitable<void> store(peer_link& client, asio::thread_pool& pool, target_file& file,
                            std::chrono::milliseconds tell_every) {
  const auto executor = co_await asio::this_coro::executor;
  asio::steady_timer next(executor);
  bool done = false;
  std::exception_ptr failure;
  auto storing = in_background(pool, [&] { file.store(); });
  asio::co_spawn(executor, std::move(storing), [&](std::exception_ptr e) {
    done = true;
    failure = std::move(e);
    next.cancel();
  });
  while (!done) {
    if (client.may_post())
      client.post(protocol::storing());
    next.expires_after(tell_every);
    error_code ignored;
    co_await next.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (failure)
    std::rethrow_exception(failure);
}

// `ring` outlives the connection: the client writes into it until the connection ends.
asio::awaitable<void> receive_file(peer_link& client, asio::thread_pool& pool,
                                   const serve_options& options, std::optional<slots>& ring) {
  const auto offer = co_await client.receive_as<protocol::offer>();
  const auto file = co_await in_background(pool, [&] {
    return std::make_unique<target_file>(path_for(options.target, offer.name), offer.size);
  });

  protocol::ready here;
  here.chunk = offer.chunk;
  here.window = std::min(offer.window, std::max(1u, max_ring / offer.chunk));
  ring.emplace(client.domain(), here.chunk, here.window, asio_rdma::access::remote_write);
  here.address = ring->remote().address;
  here.rkey = ring->remote().rkey;
  client.post(here);

  for (std::uint64_t left = offer.size; left != 0;) {
    const auto filled = co_await client.receive_as<protocol::filled>();
    if (filled.slot >= here.window || filled.bytes > here.chunk || filled.bytes > left)
      client.violation();
    co_await in_background(pool, [&] { file->write((*ring)(filled.slot, filled.bytes)); });
    left -= filled.bytes;
    const protocol::emptied emptied{filled.slot};
    client.post(emptied);
  }

  const auto finish = co_await client.receive_as<protocol::finish>();
  protocol::stored stored;
  stored.hash = file->finish();
  if (stored.hash != finish.hash)
    throw copy_error(file->path().string() + ": the SHA-256 of the received bytes differs",
                     protocol::reason::different);
  co_await store(client, pool, *file, options.tell_every);
  std::printf("received %s: %s, SHA-256 %s\n", one_line(file->path().string()).c_str(),
              in_bytes(double(offer.size)).c_str(), to_hex(stored.hash).c_str());
  std::fflush(stdout);
  co_await client.send(stored);
}

asio::awaitable<void> serve_client(asio::io_context& io, asio::thread_pool& pool,
                                   asio_rdma::acceptor& acceptor, devices& known,
                                   asio_rdma::connection_request request, serve_options options) {
  std::ostringstream peer;
  peer << "the client at " << request.info().remote.address();
  const auto client =
      std::make_shared<peer_link>(io, known.find(request.device_name()), peer.str());
  std::optional<slots> ring;
  std::optional<copy_error> failure;
  client->start();
  try {
    co_await acceptor.async_accept(std::move(request), client->queue_pair(), asio::use_awaitable);
    co_await receive_file(*client, pool, options, ring);
  } catch (const std::exception& e) {
    failure = as_copy_error(e);
  }
  if (failure)
    co_await client->send_failure(*failure);
  client->close();
  if (failure)
    throw *failure;
}

} // namespace

asio::awaitable<void> serve_files(asio::io_context& io, asio::thread_pool& pool,
                                  const serve_options& options) {
  check_target(options.target);
  error_code ec;
  const auto address = asio::ip::make_address(options.address, ec);
  if (ec)
    throw copy_error("'" + options.address + "': not an IP address");
  asio_rdma::acceptor acceptor(io);
  acceptor.open(tcp::endpoint(address, options.port), 16, ec);
  if (ec)
    throw copy_error(options.address + ":" + std::to_string(options.port) + ": " + ec.message());
  std::cout << "listening on " << acceptor.local_endpoint() << std::endl;

  devices known;
  for (;;) {
    asio_rdma::connection_request request =
        co_await acceptor.async_wait_request(asio::use_awaitable);
    auto copy = serve_client(io, pool, acceptor, known, std::move(request), options);
    if (options.once) {
      co_await std::move(copy);
      co_return;
    }
    asio::co_spawn(io, std::move(copy), [](std::exception_ptr e) {
      try {
        if (e)
          std::rethrow_exception(e);
      } catch (const std::exception& error) {
        std::cerr << "rdma_copy: " << one_line(as_copy_error(error).what()) << std::endl;
      }
    });
  }
}
