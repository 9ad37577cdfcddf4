// SPDX-License-Identifier: BSL-1.0
//
// Contexts that connect queue pairs of another context.
#pragma once

#include "catch.hpp"
#include "device/connecting/cm_support.hpp"

#include <initializer_list>
#include <thread>

namespace test {

inline void until_all(std::initializer_list<asio::io_context*> contexts,
                      const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    for (asio::io_context* io : contexts) {
      io->restart();
      io->poll();
    }
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("timed out waiting for the condition");
    std::this_thread::yield();
  }
}

/// A context that connects and a context that accepts, for queue pairs of a third context.
struct makers {
  explicit makers(int concurrency_hint = 1)
      : connecting(concurrency_hint), accepting(concurrency_hint) {}

  connection connected, accepted;
  std::optional<asio::io_context> connecting, accepting;
  std::optional<connector> initiator{*connecting};
  std::optional<acceptor> listener{std::in_place, *accepting,
                                   endpoint(device_address(open_device()), 0)};

  template <class Object>
  void start(Object& a, Object& b) {
    listener->async_accept(b, accepted.handler());
    initiator->async_connect(a, listener->local_endpoint(), connected.handler());
  }
  template <class Object>
  void meet(asio::io_context& io, Object& a, Object& b) {
    start(a, b);
    until_all({&*connecting, &*accepting, &io},
              [&] { return connected.done() && accepted.done(); });
    REQUIRE(connected.succeeded());
    REQUIRE(accepted.succeeded());
  }
  // On iWARP the connector's context waits for an answer. Destroying a listening id answers.
  void destroy_connecting() {
    if (open_device().type() == transport::iwarp)
      destroy_accepting();
    initiator.reset();
    connecting.reset();
  }
  void destroy_accepting() {
    listener.reset();
    accepting.reset();
  }
};

/// The queue pairs and their context.
struct home {
  device dev = open_device();
  protection_domain pd{dev};
  memory ma{pd, 64, most_rights(dev)}, mb{pd, 64, most_rights(dev)};
  asio::io_context io{1};
  queue_pair a{io, pd}, b{io, pd};

  bool carries() {
    sent s;
    got r;
    ma.put_word(0, 42);
    mb.put_word(0, 0);
    b.async_receive(mb.buffer(0, 8), r.handler());
    a.async_send(ma.buffer(0, 8), s.handler());
    until(io, [&] { return s.done() && r.done(); });
    return s.succeeded() && r.succeeded() && mb.word(0) == 42;
  }
};

} // namespace test
