// SPDX-License-Identifier: BSL-1.0
#include "support/raw_peer.hpp"

#include "iwarp/big_endian.hpp"
#include "support/fixture.hpp"
#include "wire/numbers.hpp"

#include <arpa/inet.h>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace soft::test {
namespace {

// Peers have threads of their own, in which Catch's macros do not work.
void require(bool holds, const char* what) {
  if (!holds)
    throw std::runtime_error(what);
}

} // namespace

raw_peer::raw_peer(const std::string& port, int segment)
    : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  if (segment != 0)
    require(setsockopt(socket_, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment)) == 0,
            "TCP_MAXSEG");
  const sockaddr_in to = local_address(static_cast<std::uint16_t>(std::stoi(port)));
  require(connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0, "connect");
  prepare();
}

raw_peer::raw_peer(int listener) : socket_(::accept(listener, nullptr, nullptr)) {
  require(socket_ >= 0, "accept");
  prepare();
}

raw_peer::raw_peer(const ibv_qp& qp) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const block_address to(block_of(qp.qp_num), block_address::connections);
  require(connect(socket_, &to.base(), to.size) == 0, "connect");
  prepare();
}

void raw_peer::send_request(const ibv_qp& qp, const iwarp::start_options& o) {
  std::array<std::byte, 9> data;
  iwarp::put_big_endian(data.data(), number_of_raw_peer);
  iwarp::put_big_endian(data.data() + 4, qp.qp_num);
  iwarp::put_big_endian(data.data() + 8, static_cast<std::uint8_t>(qp.qp_type));
  iwarp::start_frame f = make_request(o);
  require(f.set_private_data(data), "the data of a request");
  send(f);
}

void raw_peer::prepare() {
  const timeval patience{20, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

raw_peer::~raw_peer() { close(socket_); }

void raw_peer::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    require(n > 0, "send");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

std::vector<std::byte> raw_peer::fpdu(iwarp::fpdu_writer& w, const iwarp::outgoing_message& m,
                                      std::span<const std::byte> payload) {
  iwarp::outgoing_segment s;
  require(w.start(m) && w.next(s) && s.last, "a message of one segment");
  w.seal(s, {&payload, 1});
  std::vector<std::byte> all(s.header().begin(), s.header().end());
  all.insert(all.end(), payload.begin(), payload.end());
  all.insert(all.end(), s.trailer().begin(), s.trailer().end());
  return all;
}

void raw_peer::send(const iwarp::outgoing_message& m, std::span<const std::byte> payload) {
  send(fpdu(writer, m, payload));
}

std::vector<std::byte> raw_peer::read(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  require(bytes == 0 || recv(socket_, all.data(), bytes, MSG_WAITALL) == ssize_t(bytes), "recv");
  return all;
}

iwarp::start_frame raw_peer::start(bool reply) {
  iwarp::start_reader reader(reply);
  auto r = reader.feed(read(iwarp::start_frame::header_size));
  while (r.state == iwarp::start_reader::status::more)
    r = reader.feed(read(1));
  require(r.state == iwarp::start_reader::status::done, "a start frame");
  return reader.frame();
}

raw_peer::segment raw_peer::next() {
  auto header = read(iwarp::fpdu_control_size);
  std::size_t size = 0;
  require(!iwarp::check_control(std::span<const std::byte, iwarp::fpdu_control_size>(header), size),
          "the control field of a segment");
  const auto rest = read(size - header.size());
  header.insert(header.end(), rest.begin(), rest.end());
  segment s;
  require(!iwarp::decode(header, s.header), "the header of a segment");
  s.ulpdu = size - iwarp::ulpdu_length_size + s.header.length;
  s.payload = read(s.header.length);
  read(iwarp::padding_of(s.ulpdu) + iwarp::crc32c::size);
  return s;
}

iwarp::terminate raw_peer::next_terminate() {
  const segment s = next();
  require(s.header.op == iwarp::opcode::terminate, "a Terminate message");
  const auto t = iwarp::terminate::decode(s.payload);
  require(t.has_value(), "a Terminate message with its fields");
  return *t;
}

bool raw_peer::at_end() {
  std::byte b;
  return recv(socket_, &b, 1, 0) == 0;
}

std::pair<int, std::string> listen_raw() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = local_address(0);
  socklen_t size = sizeof(a);
  REQUIRE(bind(s, reinterpret_cast<sockaddr*>(&a), sizeof(a)) == 0);
  REQUIRE(::listen(s, 4) == 0);
  REQUIRE(getsockname(s, reinterpret_cast<sockaddr*>(&a), &size) == 0);
  return {s, std::to_string(ntohs(a.sin_port))};
}

} // namespace soft::test
