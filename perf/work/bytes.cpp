// SPDX-License-Identifier: BSL-1.0
// Bytes of a stream, and of a TCP socket.
#include "connecting.hpp"
#include "end.hpp"
#include "memory.hpp"

#include <asio_rdma/stream.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

namespace perf {

namespace {

struct rdma_bytes {
  using socket = asio_rdma::stream;
  using slots = pool_slots;
  using buffer = asio_rdma::mutable_buffer;
  using source = asio_rdma::const_buffer;
  using door = perf::door;

  static void open(socket& s, const side& here, const slots& memory, mode how) {
    s.open(memory.pool(), here.queue(how));
  }
  static awaitable<void> connect(const side& here, socket& s, const tcp::endpoint& where) {
    co_await connect_to(here, s, where);
  }
};

/// As `door`, for a TCP socket.
class tcp_door {
public:
  explicit tcp_door(const side& s) : acceptor_(s.io, tcp::endpoint(s.address, 0)) {}

  tcp::endpoint where() const { return acceptor_.local_endpoint(); }
  awaitable<void> accept(tcp::socket& s) {
    co_await acceptor_.async_accept(s, asio::use_awaitable);
    s.set_option(tcp::no_delay(true));
    close();
  }
  void close() {
    error_code ec;
    acceptor_.close(ec);
  }

private:
  tcp::acceptor acceptor_;
};

struct tcp_bytes {
  using socket = tcp::socket;
  using slots = plain_slots;
  using buffer = asio::mutable_buffer;
  using source = asio::const_buffer;
  using door = tcp_door;

  static void open(socket&, const side&, const slots&, mode) {}
  static awaitable<void> connect(const side&, socket& s, const tcp::endpoint& where) {
    co_await s.async_connect(where, asio::use_awaitable);
    s.set_option(tcp::no_delay(true));
  }
};

/// The common part of both ends.
template <class Base, class Kind>
class bytes_end : public Base {
protected:
  using buffer = typename Kind::buffer;

  bytes_end(const side& s, const request& r, std::uint64_t size, std::uint32_t count)
      : Base(s.io), memory_(s, size, count), socket_(s.io) {
    Kind::open(socket_, s, memory_, r.how);
  }

  template <class F>
  void write_all(const buffer& from, F f) {
    socket_.async_write_some(typename Kind::source(from),
                             this->counted([this, from, f](std::size_t n) mutable {
                               if (n < from.size())
                                 write_all(from + n, f);
                               else
                                 f();
                             }));
  }
  template <class F>
  void read_all(const buffer& to, F f) {
    socket_.async_read_some(to, this->counted([this, to, f](std::size_t n) mutable {
      if (n < to.size())
        read_all(to + n, f);
      else
        f();
    }));
  }

  // A graceful end would wait for a peer that may be gone.
  void stop() override {
    error_code ec;
    socket_.set_option(asio::socket_base::linger(true, 0), ec);
    socket_.close(ec);
  }

  typename Kind::slots memory_;
  typename Kind::socket socket_;
};

template <class Kind>
class near_bytes_end : public bytes_end<near_end, Kind> {
public:
  near_bytes_end(const side& s, const request& r, const memory_limits& m)
      : bytes_end<near_end, Kind>(s, r, r.size, r.of == metric::latency ? 2 : slots(r, m)),
        side_(s),
        latency_(r.of == metric::latency) {}

  awaitable<void> connect(const offer& to) override {
    co_await Kind::connect(side_, this->socket_, to.where);
  }
  void start() override {
    if (latency_) {
      parts_ = 2;
      this->write_all(this->memory_[0], [this] { part_done(); });
      this->read_all(this->memory_[1], [this] { part_done(); });
    } else {
      this->write_all(this->memory_[started_++], [this] { this->completed(); });
    }
  }

private:
  void part_done() {
    if (--parts_ == 0)
      this->completed();
  }

  const side& side_;
  const bool latency_;
  int parts_ = 0;
  std::uint64_t started_ = 0;
};

/// A read takes a whole write, but less memory than long writes have: the rest is read by more.
std::uint64_t bytes_of_read(const request& r) {
  return r.of == metric::latency ? r.size : std::clamp<std::uint64_t>(r.size, 256 << 10, 16 << 20);
}

template <class Kind>
class far_bytes_end : public bytes_end<far_end, Kind> {
public:
  far_bytes_end(const side& s, const request& r, const memory_limits&)
      : bytes_end<far_end, Kind>(s, r, bytes_of_read(r), 1),
        latency_(r.of == metric::latency),
        door_(s) {}

  offer listening() const override { return {door_.where(), {}}; }
  awaitable<void> accept() override {
    co_await door_.accept(this->socket_);
    if (latency_)
      echo();
    else
      take();
  }

private:
  void stop() override {
    bytes_end<far_end, Kind>::stop();
    door_.close();
  }

  void echo() {
    this->read_all(this->memory_[0], [this] {
      this->write_all(this->memory_[0], [] {});
      this->add_arrived(this->memory_[0].size());
      echo();
    });
  }
  void take() {
    this->socket_.async_read_some(this->memory_[0], this->counted([this](std::size_t n) {
      this->add_arrived(n);
      take();
    }));
  }

  const bool latency_;
  typename Kind::door door_;
};

} // namespace

std::unique_ptr<near_end> near_bytes(const side& s, const request& r, const memory_limits& m) {
  if (r.what == kind::tcp)
    return std::make_unique<near_bytes_end<tcp_bytes>>(s, r, m);
  return std::make_unique<near_bytes_end<rdma_bytes>>(s, r, m);
}
std::unique_ptr<far_end> far_bytes(const side& s, const request& r, const memory_limits& m) {
  if (r.what == kind::tcp)
    return std::make_unique<far_bytes_end<tcp_bytes>>(s, r, m);
  return std::make_unique<far_bytes_end<rdma_bytes>>(s, r, m);
}

} // namespace perf
