// SPDX-License-Identifier: BSL-1.0
#include "device/asio/asio_idle_kinds.hpp"
#include "device/connection/connection_support.hpp"

#include <asio_rdma/stream.hpp>
#include <boost/asio/detached.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace test::asio_idle_links {
namespace {

/// Two connections or streams, with memory of a pool or with shared receives. The context is run to
/// connect them.
template <class Object, class Source>
void connect_both(asio::io_context& io, const Source& source, Object& a, Object& b,
                  const typename Object::options_type& options = {}) {
  acceptor listener(io, own_endpoint());
  connector initiator(io);
  test::connection accepted, connected;
  a.open(source, options);
  b.open(source, options);
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  until(io, [&] { return accepted.done() && connected.done(); });
  io.restart();
}

/// Memory of connections and streams.
struct ground_of_links {
  ground_of_links(asio::io_context& io, bool shares)
      : shared(shares ? shared_receives(io, pool) : shared_receives()) {}
  template <class Object>
  void connect(asio::io_context& io, Object& a, Object& b) const {
    if (shared.is_open())
      connect_both(io, shared, a, b);
    else
      connect_both(io, pool, a, b);
  }
  memory_pool pool{protection_domain(open_device())};
  shared_receives shared;
};

struct messages : operations {
  messages(asio::io_context& io, bool shares) : on(io, shares), a(io), b(io) {
    on.connect(io, a, b);
  }
  void start(done d) override { b.async_receive(upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      a.async_send(asio::buffer("x", 1), asio::detached);
  }
  ground_of_links on;
  asio_rdma::connection a, b;
};

/// Two connections. Each grants memory, and `target` is memory of b that a may access.
struct two_connections {
  explicit two_connections(asio::io_context& io) : a(io), b(io) {
    connection_options options;
    options.remote_memory.bytes = 1 << 20;
    options.remote_memory.grants = started_count;
    options.remote_memory.rights = access::remote_read | access::remote_write;
    connect_both(io, pool, a, b, options);
  }
  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  memory target{pd, 4096, most_rights(dev)};
  char bytes[8] = {};
  asio_rdma::connection a, b;
};

/// Operations of a that nothing delays.
struct started_at_once : started_late, two_connections {
  using starter = void (*)(two_connections&, done);

  started_at_once(asio::io_context& io, starter s) : two_connections(io), start_one(s) {}
  void start_now(done d) override { start_one(*this, std::move(d)); }
  starter start_one;
};

void start_send(two_connections& c, done d) {
  c.b.async_receive(asio::detached);
  c.a.async_send(asio::buffer("x", 1), upon(std::move(d)));
}
void start_write(two_connections& c, done d) {
  c.a.async_write(asio::buffer("x", 1), c.target.remote(), upon(std::move(d)));
}
void start_read(two_connections& c, done d) {
  c.a.async_read(asio::buffer(c.bytes), c.target.remote(), upon(std::move(d)));
}
void start_fetch_add(two_connections& c, done d) {
  c.a.async_fetch_add(c.target.remote(), 1, upon(std::move(d)));
}
void start_compare_and_swap(two_connections& c, done d) {
  c.a.async_compare_and_swap(c.target.remote(), 0, 1, upon(std::move(d)));
}
void request_memory(two_connections& c, done d) {
  c.a.async_request_memory(64, upon(std::move(d)));
}
void lend(two_connections& c, done d) {
  c.a.async_send_region(c.pool.allocate(64), upon(std::move(d)));
}

/// Operations of a on regions that b has granted.
struct on_regions : started_late, two_connections {
  using starter = void (*)(asio_rdma::connection&, const remote_region&, done);

  on_regions(asio::io_context& io, starter s) : two_connections(io), start_one(s) {
    for (int i = 0; i < started_count; ++i)
      a.async_request_memory(
          64, access::remote_read | access::remote_write, std::chrono::minutes(1),
          [this](error_code, remote_region r) { regions.push_back(std::move(r)); });
    until(io, [this] { return regions.size() == started_count; });
    io.restart();
  }
  void start_now(done d) override { start_one(a, regions[next++], std::move(d)); }
  starter start_one;
  std::vector<remote_region> regions;
  std::size_t next = 0;
};

void renew(asio_rdma::connection& a, const remote_region& r, done d) {
  a.async_renew(r, std::chrono::minutes(2), upon(std::move(d)));
}
void hand_back(asio_rdma::connection& a, const remote_region& r, done d) {
  a.async_send_region(r, upon(std::move(d)));
}

struct immediate_receives : operations, two_connections {
  using two_connections::two_connections;
  void start(done d) override { b.async_receive_immediate(upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      a.async_write(asio::buffer("x", 1), target.remote(), 7, asio::detached);
  }
};

struct region_receives : operations, two_connections {
  using two_connections::two_connections;
  void start(done d) override { b.async_receive_region(upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      a.async_send_region(pool.allocate(64), asio::detached);
  }
};

/// The peer ends the connection.
struct end_waits : operations, two_connections {
  using two_connections::two_connections;
  void start(done d) override {
    b.async_wait_disconnect(upon(std::move(d), asio::error::connection_reset));
  }
  void complete() override { a.close(); }
};

/// Each operation closes its own connection. The peer closes the connection too.
struct closes : started_late {
  explicit closes(asio::io_context& io) : on(io, false) {
    for (int i = 0; i < started_count; ++i)
      on.connect(io, a.emplace_back(io), b.emplace_back(io));
  }
  void start_now(done d) override {
    b[next].async_close(asio::detached);
    a[next++].async_close(upon(std::move(d)));
  }
  ground_of_links on;
  std::deque<asio_rdma::connection> a, b;
  std::size_t next = 0;
};

/// Each operation is on its own stream, because a stream has one read and one write at a time.
struct streams {
  explicit streams(asio::io_context& io, bool shares = false) : on(io, shares) {
    for (int i = 0; i < started_count; ++i)
      on.connect(io, a.emplace_back(io), b.emplace_back(io));
  }
  void write_all() {
    for (stream& s : a)
      s.async_write_some(asio::buffer("x", 1), asio::detached);
  }
  ground_of_links on;
  std::deque<stream> a, b;
  std::size_t next = 0;
  char bytes[8] = {};
};

/// Operations of a stream that wait for bytes of the peer.
struct stream_arrivals : operations, streams {
  using starter = void (*)(streams&, stream&, done);

  stream_arrivals(asio::io_context& io, starter s, bool shares = false)
      : streams(io, shares), start_one(s) {}
  void start(done d) override { start_one(*this, b[next++], std::move(d)); }
  void complete() override { write_all(); }
  starter start_one;
};

void start_read(streams& s, stream& b, done d) {
  b.async_read_some(asio::buffer(s.bytes), upon(std::move(d)));
}
void start_receive(streams&, stream& b, done d) { b.async_receive(upon(std::move(d))); }
void start_wait(streams&, stream& b, done d) {
  b.async_wait(stream::wait_read, upon(std::move(d)));
}

struct stream_writes : started_late, streams {
  using streams::streams;
  void start_now(done d) override {
    a[next++].async_write_some(asio::buffer("x", 1), upon(std::move(d)));
  }
};

struct stream_waits_to_write : started_late, streams {
  using streams::streams;
  void start_now(done d) override { a[next++].async_wait(stream::wait_write, upon(std::move(d))); }
};

/// The peer closes its stream.
struct stream_end_waits : operations, streams {
  using streams::streams;
  void start(done d) override { b[next++].async_wait(stream::wait_error, upon(std::move(d))); }
  void complete() override {
    for (stream& s : a)
      s.close();
  }
};

} // namespace

std::vector<kind> kinds() {
  void (*const read)(streams&, stream&, done) = &start_read;
  void (*const read_remote)(two_connections&, done) = &start_read;
  std::vector<kind> all{
      {"messages", make<messages>(false)},
      {"messages, shared receives", make<messages>(true)},
      {"sends of a connection", make<started_at_once>(&start_send)},
      {"writes of a connection", make<started_at_once>(&start_write)},
      {"reads of a connection", make<started_at_once>(read_remote)},
      {"receives of immediate data", make<immediate_receives>()},
      {"requests for memory", make<started_at_once>(&request_memory)},
      {"renewals", make<on_regions>(&renew)},
      {"regions that are handed back", make<on_regions>(&hand_back)},
      {"regions that are lent", make<started_at_once>(&lend)},
      {"receives of regions", make<region_receives>()},
      {"waits for the end of a connection", make<end_waits>()},
      {"closes of connections", make<closes>(), false},
      // Of several streams. A device may complete work of several queue pairs in any order.
      {"reads of streams", make<stream_arrivals>(read), false},
      {"reads of streams, shared receives", make<stream_arrivals>(read, true), false},
      {"receives of streams", make<stream_arrivals>(&start_receive), false},
      {"waits of streams to read", make<stream_arrivals>(&start_wait), false},
      {"writes of streams", make<stream_writes>(), false},
      {"waits of streams to write", make<stream_waits_to_write>(), false},
      {"waits for the end of streams", make<stream_end_waits>(), false},
  };
  if (open_device().has_atomics()) {
    all.push_back({"additions of a connection", make<started_at_once>(&start_fetch_add)});
    all.push_back({"exchanges of a connection", make<started_at_once>(&start_compare_and_swap)});
  }
  return all;
}

} // namespace test::asio_idle_links
