// SPDX-License-Identifier: BSL-1.0
//
// Bytes by one program over `asio_rdma::stream` with its default options, from and to registered or
// plain memory, and over a TCP socket. `work::send` is a message there and back. `work::rate` is a
// sequence of messages, which are read as they arrive.
#pragma once

#include "asio_loop.hpp"

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <vector>

namespace bench {

/// A stream for each end in this process, and memory to write from and read into.
class rdma_streams {
public:
  rdma_streams(const plan& p, const cm_end* near, const cm_end* far, process_pipe* to_active)
      : io(concurrency_hint(p)),
        device_((near ? near : far)->context(), asio_rdma::ownership::borrow),
        pd_(device_),
        pool_(pd_),
        queue_(io, device_, completion_options(p)) {
    const auto address = asio::ip::make_address(p.address);
    asio_rdma::acceptor acceptor(io);
    asio_rdma::connector connector(io);
    unsigned missing = 0;
    const auto done = [&missing](const asio_rdma::error_code& ec, const auto&) {
      if (ec)
        fail("connect", ec.message().c_str());
      --missing;
    };
    if (far) {
      ++missing;
      acceptor.open({address, 0});
      passive.open(pool_, queue_);
      acceptor.async_accept(passive, done);
    }
    const std::uint16_t port =
        exchange_port(far ? acceptor.local_endpoint().port() : 0, near, far, to_active);
    if (near) {
      ++missing;
      active.open(pool_, queue_);
      connector.async_connect(active, {address, port}, done);
    }
    while (missing != 0)
      io.run_one();
  }

  asio_rdma::registered_buffer allocate(std::size_t bytes) { return pool_.allocate(bytes); }
  queue_counters counters() const {
    const auto c = queue_.counters();
    return {c.polls, c.arms, c.events,
            active.statistics().registrations + passive.statistics().registrations};
  }

  /// Calls `done` with the number of bytes that arrived.
  template <class F>
  void take(asio_rdma::registered_buffer&, F done) {
    passive.async_receive(
        [done](const asio_rdma::error_code& ec, const asio_rdma::registered_buffer& piece) mutable {
          done(ec, piece.size());
        });
  }

  /// Writes the whole buffer.
  template <class F>
  static void put(asio_rdma::stream& to, const asio_rdma::registered_buffer& from, F done) {
    to.async_write_some(from, std::move(done));
  }
  /// Fills the whole buffer.
  template <class F>
  static void fill(asio_rdma::stream& from, const asio_rdma::mutable_buffer& into, F done) {
    from.async_read_some(
        into, [&from, into, done](const asio_rdma::error_code& ec, std::size_t n) mutable {
          if (ec || n == into.size())
            done(ec, n);
          else
            fill(from, into + n, std::move(done));
        });
  }
  static asio_rdma::mutable_buffer whole(asio_rdma::registered_buffer& memory) { return memory; }

  asio::io_context io;

private:
  asio_rdma::device device_;
  asio_rdma::protection_domain pd_;
  asio_rdma::memory_pool pool_;
  asio_rdma::completion_queue queue_;

public:
  asio_rdma::stream active{io}, passive{io};
};

/// With Nagle's algorithm, as sockets are by default, a small write waits for the acknowledgement
/// of the last one.
enum class small_writes { at_once, nagle };

template <small_writes How>
class tcp_sockets {
public:
  tcp_sockets(const plan& p, const cm_end* near, const cm_end* far, process_pipe* to_active)
      : io(concurrency_hint(p)) {
    const auto address = asio::ip::make_address(p.address);
    asio::ip::tcp::acceptor acceptor(io);
    if (far)
      acceptor = {io, {address, 0}};
    const std::uint16_t port =
        exchange_port(far ? acceptor.local_endpoint().port() : 0, near, far, to_active);
    if (near) {
      active.connect({address, port});
      active.set_option(asio::ip::tcp::no_delay(How == small_writes::at_once));
    }
    if (far) {
      acceptor.accept(passive);
      passive.set_option(asio::ip::tcp::no_delay(How == small_writes::at_once));
    }
  }

  queue_counters counters() const { return {}; }

  asio::io_context io;
  asio::ip::tcp::socket active{io}, passive{io};
};

/// Streams or sockets with plain memory, which a program for TCP sockets uses.
template <class Streams>
class from_plain_memory : public Streams {
public:
  using Streams::Streams;

  static std::vector<char> allocate(std::size_t bytes) { return std::vector<char>(bytes); }
  template <class F>
  void take(std::vector<char>& into, F done) {
    this->passive.async_read_some(asio::buffer(into), std::move(done));
  }
  template <class Stream, class F>
  static void put(Stream& to, const std::vector<char>& from, F done) {
    asio::async_write(to, asio::buffer(from), std::move(done));
  }
  template <class Stream, class F>
  static void fill(Stream& from, const asio::mutable_buffer& into, F done) {
    asio::async_read(from, into, std::move(done));
  }
  static asio::mutable_buffer whole(std::vector<char>& memory) { return asio::buffer(memory); }
};
using plain_streams = from_plain_memory<rdma_streams>;
using tcp_streams = from_plain_memory<tcp_sockets<small_writes::at_once>>;
using default_tcp_streams = from_plain_memory<tcp_sockets<small_writes::nagle>>;

template <class Streams>
class stream_loop final : public loop {
public:
  /// The ends in this process; each may be null. They only name the device.
  stream_loop(const plan& p, const cm_end* active, const cm_end* passive, process_pipe* to_active)
      : plan_(p),
        counts_received_(passive != nullptr),
        streams_(p, active, passive, to_active),
        question_(streams_.allocate(p.bytes)),
        answer_(streams_.allocate(p.bytes)) {
    std::memset(question_.data(), 'a', p.bytes);
    if (!passive)
      return;
    if (p.what == work::send)
      echo();
    else
      take();
  }

  queue_counters counters() const override { return streams_.counters(); }

  void run(std::uint64_t operations) override {
    left_ = operations;
    to_receive_ = counts_received_ ? operations * plan_.bytes : 0;
    streams_.io.restart();
    plan_.what == work::send ? ask() : write();
    streams_.io.run();
  }

  void serve() override {
    for (;;) {
      streams_.io.run();
      streams_.io.restart();
    }
  }

private:
  static void check(const asio_rdma::error_code& ec, const char* what) {
    if (ec)
      fail(what, ec.message().c_str());
  }
  void echo() {
    streams_.fill(streams_.passive, streams_.whole(answer_),
                  [this](const asio_rdma::error_code& ec, std::size_t) {
                    check(ec, "read");
                    streams_.put(streams_.passive, answer_,
                                 [this](const asio_rdma::error_code& e, std::size_t) {
                                   check(e, "write");
                                   echo();
                                 });
                  });
  }
  void ask() {
    streams_.put(streams_.active, question_, [this](const asio_rdma::error_code& ec, std::size_t) {
      check(ec, "write");
      streams_.fill(streams_.active, streams_.whole(question_),
                    [this](const asio_rdma::error_code& e, std::size_t) {
                      check(e, "read");
                      if (--left_ != 0)
                        ask();
                      else
                        streams_.io.stop();
                    });
    });
  }

  void take() {
    streams_.take(answer_, [this](const asio_rdma::error_code& ec, std::size_t bytes) {
      check(ec, "read");
      to_receive_ -= bytes;
      progressed();
      take();
    });
  }
  void write() {
    streams_.put(streams_.active, question_, [this](const asio_rdma::error_code& ec, std::size_t) {
      check(ec, "write");
      if (--left_ != 0)
        write();
      else
        progressed();
    });
  }
  void progressed() {
    if (left_ == 0 && to_receive_ == 0)
      streams_.io.stop();
  }

  plan plan_;
  bool counts_received_;
  Streams streams_;
  decltype(std::declval<Streams&>().allocate(0)) question_, answer_;
  std::uint64_t left_ = 0, to_receive_ = 0;
};

} // namespace bench
