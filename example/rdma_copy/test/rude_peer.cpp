// SPDX-License-Identifier: BSL-1.0
// A client, then a server, that breaks the protocol: the other side must end the copy with an
// error, and must do nothing else.
#include "../client.hpp"
#include "../file.hpp"
#include "../peer_link.hpp"
#include "../server.hpp"

#include "catch.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using asio::ip::tcp;
using std::chrono::seconds;

std::string error_of(const std::exception_ptr& e) {
  try {
    if (e)
      std::rethrow_exception(e);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

struct scene {
  scene() {
    std::string name = (fs::temp_directory_path() / "rude_peer.XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder = name;
  }
  ~scene() { fs::remove_all(folder); }

  tcp::endpoint address() const {
    const char* a = std::getenv("ASIO_RDMA_ADDRESS");
    REQUIRE(a != nullptr);
    return {asio::ip::make_address(a), 0};
  }
  void run() {
    io.run_for(seconds(60)); // a limit for a test that hangs
    REQUIRE(io.stopped());
  }

  fs::path folder;
  serve_options options; // outlives the server
  asio::io_context io{1};
  asio::thread_pool pool{1};
  asio_rdma::device device = asio_rdma::device::open(std::getenv("ASIO_RDMA_DEVICE"));
};

const protocol::offer good_offer{10000, 4096, 2, "name"};

using messages = std::vector<protocol::message>;

asio::awaitable<void> send_all(peer_link& peer, messages all) {
  for (const protocol::message& m : all)
    co_await peer.send(m);
}

/// A client that sends its offer, and the given messages after the answer.
asio::awaitable<void> rude_client(scene& s, std::shared_ptr<peer_link> server, tcp::endpoint to,
                                  messages first, messages then, bool leaves) {
  asio_rdma::connector connector(s.io);
  server->start();
  co_await connector.async_connect(server->queue_pair(), to, asio::use_awaitable);
  co_await send_all(*server, std::move(first));
  if (!then.empty()) {
    co_await server->receive_as<protocol::ready>();
    co_await send_all(*server, std::move(then));
  }
  do
    co_await server->receive(); // throws when the server fails
  while (!leaves);
}

/// A server that answers an offer with the given messages.
asio::awaitable<void> rude_server(asio_rdma::acceptor& acceptor, std::shared_ptr<peer_link> client,
                                  messages answers) {
  client->start();
  co_await acceptor.async_accept(client->queue_pair(), asio::use_awaitable);
  co_await client->receive_as<protocol::offer>();
  co_await send_all(*client, std::move(answers));
  for (;;)
    co_await client->receive(); // throws when the client fails
}

/// Captures the text that is written to a stream during its lifetime.
class captured {
public:
  explicit captured(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text.rdbuf())) {}
  ~captured() { stream_.rdbuf(before_); }

  std::ostringstream text;

private:
  std::ostream& stream_;
  std::streambuf* before_;
};

/// Starts a server of one copy. It listens when this returns. Returns its address.
tcp::endpoint start_server(scene& s, std::string& error) {
  serve_options& options = s.options;
  options.target = s.folder;
  options.address = s.address().address().to_string();
  options.once = true;
  const captured out(std::cout);
  asio::co_spawn(s.io, serve_files(s.io, s.pool, s.options),
                 [&error](std::exception_ptr e) { error = error_of(e); });
  s.io.poll();
  const std::string line = out.text.str();
  tcp::endpoint to = s.address();
  to.port(static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1))));
  return to;
}

void check_server(messages first, messages then, const std::string& expected,
                  bool client_leaves = false) {
  scene s;
  std::string server_error, client_error;
  const tcp::endpoint to = start_server(s, server_error);
  const auto server = std::make_shared<peer_link>(s.io, s.device, "the server");
  asio::co_spawn(s.io, rude_client(s, server, to, std::move(first), std::move(then), client_leaves),
                 [&](std::exception_ptr e) {
                   client_error = error_of(e);
                   server->close();
                 });
  s.run();
  CAPTURE(server_error, expected);
  CHECK(server_error.find(expected) != std::string::npos);
  CHECK(client_error.empty() == client_leaves);
  CHECK(fs::is_empty(s.folder));
}

void check_client(messages answers, const std::string& expected) {
  scene s;
  std::ofstream(s.folder / "file") << std::string(10000, 'x');
  std::string client_error, server_error;
  asio_rdma::acceptor acceptor(s.io, s.address());
  const auto client = std::make_shared<peer_link>(s.io, s.device, "the client");
  asio::co_spawn(s.io, rude_server(acceptor, client, std::move(answers)),
                 [&](std::exception_ptr e) {
                   server_error = error_of(e);
                   client->close();
                 });
  send_options options;
  options.file = s.folder / "file";
  options.address =
      s.address().address().to_string() + ":" + std::to_string(acceptor.local_endpoint().port());
  options.chunk = 4096;
  options.window = 2;
  asio::co_spawn(s.io, send_file(s.io, s.pool, options), [&](std::exception_ptr e) {
    client_error = error_of(e);
    acceptor.close();
  });
  s.run();
  CAPTURE(client_error, expected);
  CHECK(client_error.find(expected) != std::string::npos);
  CHECK(!server_error.empty());
}

const std::string violation = "violated the protocol";

} // namespace

TEST_CASE("a server refuses an invalid first message of a client") {
  const protocol::message m = GENERATE(values<protocol::message>({
      protocol::ready{4096, 1, 4096, 1},
      protocol::filled{0, 1},
      protocol::emptied{0},
      protocol::finish{},
      protocol::storing{},
      protocol::stored{},
      protocol::offer{10000, 4096, 2, "../name"},
      protocol::offer{10000, 1, 2, "name"},
  }));
  check_server({m}, {}, violation);
}

TEST_CASE("a server refuses an invalid message of a client after the offer") {
  const protocol::message m = GENERATE(values<protocol::message>({
      good_offer,
      protocol::emptied{0},
      protocol::filled{2, 4096}, // a slot that does not exist
      protocol::filled{0, 4097}, // more than a slot holds
      protocol::finish{},        // before the end of the file
      protocol::stored{},
  }));
  check_server({good_offer}, {m}, violation);
}

TEST_CASE("a server refuses more bytes than were offered") {
  check_server({good_offer},
               {protocol::filled{0, 4096}, protocol::filled{1, 4096}, protocol::filled{0, 1809}},
               violation);
}

TEST_CASE("a server does not store a file with another hash") {
  check_server({good_offer},
               {protocol::filled{0, 4096}, protocol::filled{1, 4096}, protocol::filled{0, 1808},
                protocol::finish{}},
               "SHA-256 of the received bytes differs");
}

TEST_CASE("a server whose disk takes long says so until the file is stored") {
  scene s;
  std::promise<void> disk;
  std::string server_error, client_error;
  s.options.tell_every = std::chrono::milliseconds(1);
  const tcp::endpoint to = start_server(s, server_error);
  const auto server = std::make_shared<peer_link>(s.io, s.device, "the server");
  const auto client = [&]() -> asio::awaitable<void> {
    asio_rdma::connector connector(s.io);
    server->start();
    co_await connector.async_connect(server->queue_pair(), to, asio::use_awaitable);
    const protocol::message empty = protocol::offer{0, 4096, 2, "name"};
    co_await server->send(empty);
    co_await server->receive_as<protocol::ready>();
    // Keeps the only thread that stores files busy.
    asio::post(s.pool, [busy = disk.get_future().share()] { busy.wait(); });
    const protocol::message end = protocol::finish{hasher().finish()};
    co_await server->send(end);
    for (int i = 0; i < 10; ++i)
      co_await server->receive_as<protocol::storing>();
    disk.set_value();
    protocol::message m = protocol::storing();
    while (std::holds_alternative<protocol::storing>(m))
      m = co_await server->receive();
    CHECK(std::holds_alternative<protocol::stored>(m));
  };
  asio::co_spawn(s.io, client(), [&](std::exception_ptr e) {
    client_error = error_of(e);
    server->close();
  });
  s.run();
  CHECK(client_error.empty());
  CHECK(server_error.empty());
  CHECK(fs::exists(s.folder / "name"));
}

TEST_CASE("a server ends when the client says that it failed") {
  check_server({good_offer}, {protocol::failed{protocol::reason::changed}}, "changed");
}

TEST_CASE("a server ends when the client leaves in the middle") {
  check_server({good_offer}, {protocol::filled{0, 4096}, protocol::filled{1, 4096}}, "went away",
               true);
}

TEST_CASE("a client refuses an invalid answer of a server") {
  const protocol::message m = GENERATE(values<protocol::message>({
      good_offer,
      protocol::filled{0, 1},
      protocol::emptied{0},
      protocol::storing{},
      protocol::stored{},
      protocol::ready{4096, 1, 8192, 2}, // larger chunks than it offered
      protocol::ready{4096, 1, 4096, 3}, // more slots than it offered
      protocol::ready{0, 1, 4096, 2},
  }));
  check_client({m}, violation);
}

TEST_CASE("a client reports that the server's memory refused it") {
  // An iWARP peer ends the connection instead of the one operation (RFC 5040, section 8).
  const bool status = asio_rdma::device::open(std::getenv("ASIO_RDMA_DEVICE")).type() !=
                      asio_rdma::transport::iwarp;
  check_client({protocol::ready{4096, 0x12345678, 4096, 2}},
               status ? "the peer's memory refused" : "went away");
}

TEST_CASE("a client ends when the server says that it failed") {
  check_client({protocol::failed{protocol::reason::no_space}}, "has no space left");
}
