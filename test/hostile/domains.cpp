// SPDX-License-Identifier: BSL-1.0
// Peers that have the keys of another peer, of a server whose connections share a protection domain
// or have domains of their own.
#include "catch.hpp"
#include "hostile/bare_peer.hpp"

#include <asio_rdma/connection.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

namespace test::hostile_domains_tests {
namespace {

using namespace detail;
using kind = handshake::kind;
using namespace std::chrono_literals;

/// A server that sends back each message, and grants memory.
class server {
public:
  explicit server(bool own_domains) : own_(own_domains) {
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~server() {
    io_.stop();
    thread_.join();
  }
  std::uint32_t port() const { return listener_.local_endpoint().port(); }
  const device& get_device() const { return device_; }

private:
  using connection_ptr = std::shared_ptr<asio_rdma::connection>;

  void accept() {
    const connection_options o = connection_options().set_own_domain(own_).set_remote_memory(
        remote_memory_options().set_bytes(1 << 20));
    listener_.async_accept<asio_rdma::connection>(
        pool_, o, [this](error_code ec, asio_rdma::connection c) {
          if (!ec)
            echo(std::make_shared<asio_rdma::connection>(std::move(c)));
          accept();
        });
  }
  static void echo(const connection_ptr& c) {
    c->async_receive([c](error_code ec, const message& m) {
      if (ec)
        return;
      c->async_send(m, [c](error_code, std::size_t) {});
      echo(c);
    });
  }

  bool own_;
  device device_ = open_device();
  memory_pool pool_{protection_domain(device_)};
  asio::io_context io_{1};
  acceptor listener_{io_, own_endpoint()};
  std::thread thread_;
};

/// A peer to which messages of more than 48 bytes are offered.
struct peer : bare_peer {
  explicit peer(const server& s) : bare_peer(s.port(), {8, 64, 4096, 64}) {
    REQUIRE(connect(kind::message));
  }

  remote_buffer borrow() {
    frame_header h = frame(frame_type::request);
    h.credits = take_owed();
    REQUIRE(send(
        h, payload_of(request_payload{4096, 10s, remote_rights::read | remote_rights::write})));
    const auto answer = receive(frame_type::granted);
    REQUIRE(answer);
    grant_payload g;
    REQUIRE_FALSE(decode(bytes_view(*answer).subspan(frame_header::size), g));
    return g.memory;
  }
  /// The server's message, as the server offers it.
  remote_buffer offered() {
    frame_header h = frame(frame_type::message);
    h.credits = take_owed();
    REQUIRE(send(h, as_bytes(std::string(200, 'm'))));
    const auto answer = receive(frame_type::offer);
    REQUIRE(answer);
    offer_payload o;
    REQUIRE_FALSE(decode(bytes_view(*answer).subspan(frame_header::size), o));
    REQUIRE(o.memory.size == 200);
    return o.memory;
  }
};

} // namespace

TEST_CASE("domains: the key of another peer's grant is refused if each peer has a domain") {
  const bool own = GENERATE(false, true), writes = GENERATE(false, true);
  CAPTURE(own, writes);
  const server s(own);
  peer first(s), second(s);
  const remote_buffer of_first = first.borrow(), of_second = second.borrow();
  const remote_buffer target = of_first.first(64);
  const bool reached =
      writes ? second.reaches(target, of_second) : second.read(target) == IBV_WC_SUCCESS;
  CHECK(reached == (!own && !s.get_device().has_memory_windows()));
  CHECK(first.reaches(target, of_first));
  CHECK_FALSE(first.ended());
}

TEST_CASE("domains: the key of a message to another peer is refused if each peer has a domain") {
  const bool own = GENERATE(false, true);
  CAPTURE(own);
  const server s(own);
  peer first(s), second(s);
  const remote_buffer message = first.offered();
  CHECK((second.read(message) == IBV_WC_SUCCESS) == (!own && !s.get_device().confines_windows()));
  CHECK(first.read(message) == IBV_WC_SUCCESS);
}

} // namespace test::hostile_domains_tests
