// SPDX-License-Identifier: BSL-1.0
#include "device/asio/asio_idle_kinds.hpp"
#include "device/connection/connection_support.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/alock.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/detached.hpp>

#include <cstdint>
#include <deque>

namespace test {
namespace {

/// Two connections or streams. The context is run to connect them.
template <class Object>
void connect_both(asio::io_context& io, const memory_pool& pool, Object& a, Object& b,
                  const typename Object::options_type& options = {}) {
  acceptor listener(io, own_endpoint());
  connector initiator(io);
  test::connection accepted, connected;
  a.open(pool, options);
  b.open(pool, options);
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  until(io, [&] { return accepted.done() && connected.done(); });
  io.restart();
}

struct messages : operations {
  explicit messages(asio::io_context& io) : a(io), b(io) { connect_both(io, pool, a, b); }
  void start(done d) override { b.async_receive(upon(std::move(d))); }
  void complete() override {
    for (int i = 0; i < started_count; ++i)
      a.async_send(asio::buffer("x", 1), asio::detached);
  }
  memory_pool pool{protection_domain(open_device())};
  asio_rdma::connection a, b;
};

/// Two connections. b grants memory, and `target` is memory of b that a may access.
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
  asio_rdma::connection a, b;
};

struct writes_of_connection : started_late, two_connections {
  using two_connections::two_connections;
  void start_now(done d) override {
    a.async_write(asio::buffer("x", 1), target.remote(), upon(std::move(d)));
  }
};

struct reads_of_connection : started_late, two_connections {
  using two_connections::two_connections;
  void start_now(done d) override {
    a.async_read(asio::buffer(bytes), target.remote(), upon(std::move(d)));
  }
  char bytes[8];
};

struct memory_requests : started_late, two_connections {
  using two_connections::two_connections;
  void start_now(done d) override { a.async_request_memory(64, upon(std::move(d))); }
};

/// Each operation is on its own stream, because a stream has one read and one write at a time.
struct streams {
  explicit streams(asio::io_context& io) {
    for (int i = 0; i < started_count; ++i) {
      a.emplace_back(io);
      b.emplace_back(io);
      connect_both(io, pool, a.back(), b.back());
    }
  }
  void write_all() {
    for (stream& s : a)
      s.async_write_some(asio::buffer("x", 1), asio::detached);
  }
  memory_pool pool{protection_domain(open_device())};
  std::deque<stream> a, b;
  std::size_t next = 0;
};

struct stream_reads : operations, streams {
  using streams::streams;
  void start(done d) override {
    b[next++].async_read_some(asio::buffer(bytes), upon(std::move(d)));
  }
  void complete() override { write_all(); }
  char bytes[8];
};

struct stream_waits : operations, streams {
  using streams::streams;
  void start(done d) override { b[next++].async_wait(stream::wait_read, upon(std::move(d))); }
  void complete() override { write_all(); }
};

struct stream_writes : started_late, streams {
  using streams::streams;
  void start_now(done d) override {
    a[next++].async_write_some(asio::buffer("x", 1), upon(std::move(d)));
  }
};

/// Two nodes, of which `guest` has joined `host`. The context is run to connect them.
struct two_nodes {
  explicit two_nodes(asio::io_context& io) : host(io, pool, host_id), guest(io, pool, guest_id) {
    host.host(segment_bytes);
    host.listen({device_address(dev), 0});
    outcome<node_id> joined;
    guest.async_join(host.local_endpoint(), joined.handler());
    until(io, [&] { return joined.done(); });
    io.restart();
  }
  device dev = open_device();
  memory_pool pool{protection_domain(dev)};
  global_memory host, guest;
};

struct global_reads : started_late, two_nodes {
  using two_nodes::two_nodes;
  void start_now(done d) override { guest.async_read(root_of(host_id), upon(std::move(d))); }
};

struct allocations : started_late, two_nodes {
  using two_nodes::two_nodes;
  void start_now(done d) override {
    guest.async_allocate<std::uint64_t>(host_id, 0, upon(std::move(d)));
  }
};

/// Releases of locks, each of its own.
struct unlocks : started_late, two_nodes {
  unlocks(asio::io_context& io, bool of_another_node) : two_nodes(io) {
    for (int i = 0; i < started_count; ++i) {
      outcome<remote_ptr<alock_words>> words;
      host.async_allocate<alock_words>(host_id, 0, words.handler());
      until(io, [&] { return words.done(); });
      alock& lock = all.emplace_back(of_another_node ? guest : host, words.value);
      outcome<alock_guard> taken;
      lock.async_lock(taken.handler());
      until(io, [&] { return taken.done(); });
      held.push_back(std::move(taken.value));
    }
    io.restart();
  }
  void start_now(done d) override {
    alock& lock = all[next];
    lock.async_unlock(std::move(held[next++]), upon(std::move(d)));
  }
  std::deque<alock> all;
  std::vector<alock_guard> held;
  std::size_t next = 0;
};

/// Each handler releases the lock before it does anything else.
struct locks : operations, two_nodes {
  locks(asio::io_context& io, bool of_another_node)
      : two_nodes(io), words(made(io)), lock(of_another_node ? guest : host, words) {
    lock.async_lock([this](error_code, alock_guard g) { held = std::move(g); });
    until(io, [this] { return bool(held); });
    io.restart();
  }
  remote_ptr<alock_words> made(asio::io_context& io) {
    outcome<remote_ptr<alock_words>> result;
    host.async_allocate<alock_words>(host_id, 0, result.handler());
    until(io, [&] { return result.done(); });
    return result.value;
  }
  void start(done d) override {
    lock.async_lock([d = std::move(d)](error_code, alock_guard g) {
      g.unlock();
      d();
    });
  }
  void complete() override { held.unlock(); }
  remote_ptr<alock_words> words;
  alock lock;
  alock_guard held;
};

} // namespace

std::vector<kind> kinds_of_links() {
  std::vector<kind> all{
      {"messages", make<messages>()},
      {"writes of a connection", make<writes_of_connection>()},
      {"reads of a connection", make<reads_of_connection>()},
      {"requests for memory", make<memory_requests>()},
      {"reads of streams", make<stream_reads>()},
      {"writes of streams", make<stream_writes>()},
      {"waits of streams", make<stream_waits>()},
      {"reads of global memory", make<global_reads>()},
      {"allocations of global memory", make<allocations>()},
      {"locks of this node", make<locks>(false)},
      {"releases of locks of this node", make<unlocks>(false)},
  };
  if (open_device().has_atomics()) {
    all.push_back({"locks of another node", make<locks>(true), false});
    all.push_back({"releases of locks of another node", make<unlocks>(true), false});
  }
  return all;
}

} // namespace test
