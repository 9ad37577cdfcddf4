// SPDX-License-Identifier: BSL-1.0
// Every operation that connects, cancelled twice by each pair of types.
#include "device/asio/cancelled_twice.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"

#include <asio_rdma/exchange.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace test::cancelled_twice_manager_tests {
namespace {

/// Nothing has been requested or accepted. Afterwards the same objects connect.
struct unconnected : meeting {
  void proceed(bool) {
    CHECK(a.state() == queue_pair_state::open);
    CHECK(b.state() == queue_pair_state::open);
    meet();
    CHECK(carries("afterwards"));
  }
};

/// The acceptor and the connector connect others.
void others_connect(meeting& m) {
  queue_pair c(m.io, m.pd), d(m.io, m.pd);
  test::connection of_c, of_d;
  m.listener->async_accept(d, of_d.handler());
  m.initiator->async_connect(c, m.where(), of_c.handler());
  m.until([&] { return of_c.done() && of_d.done(); });
  CHECK(of_c.succeeded());
  CHECK(of_d.succeeded());
}

/// The listener has taken a request. Afterwards other queue pairs connect.
struct requested : meeting {
  template <class Handler>
  void request_by(Handler&& h) {
    outcome<connection_request> taken;
    listener->async_wait_request(taken.handler());
    initiator->async_connect(a, where(), std::forward<Handler>(h));
    until([&] { return taken.done(); });
    if (taken.ec)
      throw system_error(taken.ec, "wait for a request");
    request = std::move(taken.value);
  }
  connection_request request;
  twice* attempt = nullptr;
};

/// The connecting side gives up, or is accepted.
struct unanswered : requested {
  void proceed(bool) {
    if (attempt->calls == 0) {
      listener->async_accept(std::move(request), b, accepted.handler());
      until([&] { return attempt->calls != 0 && accepted.done(); });
      CHECK(a.state() == queue_pair_state::connected);
      return;
    }
    CHECK(a.state() ==
          (dev.type() == transport::iwarp ? queue_pair_state::failed : queue_pair_state::open));
    CHECK(b.state() == queue_pair_state::open);
    others_connect(*this);
    request = {}; // on iWARP the end of the context waits for the answer
  }
};

/// The accepting side gives up, or continues.
struct half_accepted : requested {
  void proceed(bool) {
    if (attempt->calls == 0) {
      until([&] { return attempt->calls != 0 && connected.done(); });
      CHECK(b.state() == queue_pair_state::connected);
      return;
    }
    CHECK(b.state() == queue_pair_state::failed);
    others_connect(*this);
    until([&] { return connected.done(); });
  }
};

/// Stops at a call of librdmacm, which has returned if it is rdma_connect(3). No event is read
/// between the call and the cancellation.
struct stopped : meeting {
  template <class Start>
  void run_to(cm_call last, Start&& start) {
    std::atomic<bool> there = false, connected_to = last != cm_call::connect;
    before_cm_call = [&](cm_call call, const rdma_cm_id*) {
      there = there || call == last;
      return 0;
    };
    after_connecting = [&] {
      connected_to = true;
    };
    before_reading = [&] {
      return there ? ENOMEM : 0; // the event is read later
    };
    start();
    // The reader of the events is queued again and again.
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
         !there || !connected_to;) {
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("the call was not made");
      io.restart();
      io.poll_one();
    }
    before_cm_call = nullptr;
    after_connecting = nullptr;
    before_reading = nullptr;
  }
  hooks h;
  twice* attempt = nullptr;
};

/// A stream connects, and an accept that makes the other stream has answered the request.
/// Afterwards the connection of the two is made, or its attempts end.
struct making_accept : stopped {
  making_accept() { from.open(pool); }
  void start(twice& c) {
    attempt = &c;
    run_to(cm_call::accept, [&] {
      listener->async_accept<stream>(
          pool, {},
          asio::bind_cancellation_slot(c.signal.slot(), [this, &c](error_code ec, stream s) {
            ++c.calls;
            c.ec = ec;
            made = std::move(s);
          }));
      initiator->async_connect(from, where(), connected.handler());
    });
  }
  void proceed(bool) {
    until([&] { return attempt->calls != 0; });
    CHECK(made.is_open() == !attempt->ec);
    if (!attempt->ec) {
      until([&] { return connected.done(); });
      CHECK(connected.succeeded());
    }
    others_connect(*this);
    from.close();
  }

  memory_pool pool{pd};
  stream from{io}, made{io};
};

/// An accept has answered the request.
struct answering_accept : stopped {
  void start(twice& c) {
    attempt = &c;
    run_to(cm_call::accept, [&] {
      listener->async_accept(b, c.handler());
      connect();
    });
  }
  void proceed(bool) {
    until([&] { return attempt->calls != 0; });
    CHECK(b.state() == (attempt->ec ? queue_pair_state::failed : queue_pair_state::connected));
    others_connect(*this);
    until([&] { return connected.done(); });
    if (!attempt->ec)
      CHECK(connected.succeeded());
  }
};

/// The address of the peer is known, and its route is being resolved.
struct resolving : stopped {
  void start(twice& c) {
    run_to(cm_call::resolve_route, [&] { initiator->async_connect(a, where(), c.handler()); });
  }
  void proceed(bool) {
    CHECK(a.state() == queue_pair_state::open);
    meet();
    CHECK(carries("afterwards"));
  }
};

/// The request has been sent, and no program has received it.
struct requesting : stopped {
  void start(twice& c) {
    attempt = &c;
    run_to(cm_call::connect, [&] { initiator->async_connect(a, where(), c.handler()); });
  }
  void proceed(bool) {
    if (attempt->calls == 0) {
      accept();
      until([&] { return attempt->calls != 0 && accepted.done(); });
      CHECK(a.state() == queue_pair_state::connected);
      return;
    }
    CHECK(a.state() ==
          (dev.type() == transport::iwarp ? queue_pair_state::failed : queue_pair_state::open));
    listener.emplace(io, own_endpoint()); // the new one does not receive the request
    others_connect(*this);
  }
};

/// An exchange that has no peer. Afterwards the peer, if the exchange is still pending, or another
/// exchange connects the queue pair.
struct exchange_scene {
  using unix_stream = asio::local::stream_protocol;

  exchange_scene() { asio::local::connect_pair(here, there); }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  void start(twice& c) {
    exchange = &c;
    async_exchange(here, a, c.handler());
  }
  void proceed(bool) {
    outcome<void> again, peer;
    const bool ended = exchange->calls != 0;
    if (ended) {
      CHECK(a.state() == queue_pair_state::open);
      here.close();
      there.close();
      asio::local::connect_pair(here, there);
      async_exchange(here, a, again.handler());
    }
    async_exchange(there, b, peer.handler());
    until([&] { return peer.done() && (ended ? again.done() : exchange->calls != 0); });
    CHECK(peer.succeeded());
    CHECK(again.succeeded() == ended);
    CHECK(a.state() == queue_pair_state::connected);
  }

  device dev = open_device();
  protection_domain pd{dev};
  asio::io_context io{1};
  unix_stream::socket here{io}, there{io};
  queue_pair a{io, pd}, b{io, pd};
  twice* exchange = nullptr;
};

} // namespace

TEST_CASE("an operation that waits for a request is taken back, however often it is cancelled") {
  check_on<unconnected>({
      {"accept", fate::taken_back,
       [](unconnected& s, twice& c) {
         s.listener->async_accept(s.b, c.handler());
       }},
      {"accept of a new object", fate::taken_back,
       [](unconnected& s, twice& c) {
         s.listener->async_accept<stream>(memory_pool(s.pd), {}, c.handler());
       }},
      {"wait for a request", fate::taken_back,
       [](unconnected& s, twice& c) {
         s.listener->async_wait_request(c.handler());
       }},
  });
}

TEST_CASE("the acceptance of a request is cancelled twice, and nothing else of the acceptor") {
  const connections_check nothing_left;
  check_on<half_accepted>({{"accept of a request", fate::let_go, [](half_accepted& s, twice& c) {
                              s.attempt = &c;
                              s.request_by(s.connected.handler());
                              s.listener->async_accept(std::move(s.request), s.b, c.handler());
                            }}});
}

TEST_CASE("an accept that makes an object and has taken its request is cancelled twice") {
  check_on<making_accept>({{"accept of a new object", fate::let_go, [](making_accept& s, twice& c) {
                              s.start(c);
                            }}});
}

TEST_CASE("an accept that has answered its request is cancelled twice, and nothing else of the "
          "acceptor") {
  const connections_check nothing_left;
  check_on<answering_accept>({{"accept", fate::let_go, [](answering_accept& s, twice& c) {
                                 s.start(c);
                               }}});
}

TEST_CASE("an attempt to connect is cancelled twice, and nothing else of the connector") {
  const connections_check nothing_left;
  check_on<unconnected>({{"connect", fate::taken_back, [](unconnected& s, twice& c) {
                            s.initiator->async_connect(s.a, s.where(), c.handler());
                          }}});
  // On iWARP the end of an attempt fails its queue pair.
  const fate unspent = open_device().type() == transport::iwarp ? fate::let_go : fate::taken_back;
  check_on<resolving>(
      {{"connect that has resolved the address", fate::taken_back, [](resolving& s, twice& c) {
          s.start(c);
        }}});
  check_on<requesting>({{"connect that has sent its request", unspent, [](requesting& s, twice& c) {
                           s.start(c);
                         }}});
  check_on<unanswered>({{"connect that is not answered", unspent, [](unanswered& s, twice& c) {
                           s.attempt = &c;
                           s.request_by(c.handler());
                         }}});
}

TEST_CASE("total does not end an exchange, as a part may have been sent") {
  if (open_device().type() == transport::iwarp)
    return not_on_this_device("exchanges");
  check_on<exchange_scene>({
      {"exchange that has begun", fate::let_go,
       [](exchange_scene& s, twice& c) {
         s.start(c);
       }},
      {"exchange that waits for the peer", fate::let_go,
       [](exchange_scene& s, twice& c) {
         s.start(c);
         s.io.poll();
         s.io.restart();
       }},
  });
}

} // namespace test::cancelled_twice_manager_tests
