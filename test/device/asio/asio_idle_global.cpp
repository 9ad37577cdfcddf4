// SPDX-License-Identifier: BSL-1.0
#include "device/asio/asio_idle_kinds.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/alock.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace test::asio_idle_global {
namespace {

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

using word = std::uint64_t;

/// Memory of the host.
template <class T>
remote_ptr<T> make_in(asio::io_context& io, two_nodes& n) {
  outcome<remote_ptr<T>> made;
  n.host.async_allocate<T>(host_id, 0, made.handler());
  until(io, [&] { return made.done(); });
  io.restart();
  return made.value;
}

/// Operations of the guest that nothing delays, each on its own word of the host.
struct started_at_once : started_late, two_nodes {
  using starter = void (*)(started_at_once&, remote_ptr<word>, done);

  started_at_once(asio::io_context& io, starter s) : two_nodes(io), start_one(s) {
    for (int i = 0; i < started_count; ++i)
      words.push_back(make_in<word>(io, *this));
  }
  void start_now(done d) override { start_one(*this, words[next++], std::move(d)); }
  starter start_one;
  std::vector<remote_ptr<word>> words;
  std::deque<global_memory::batch> batches;
  std::size_t next = 0;
};

void start_read(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_read(p, upon(std::move(d)));
}
void start_write(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_write(p, 1, upon(std::move(d)));
}
void start_flushed_write(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_write(p, 1, visibility::flushed, upon(std::move(d)));
}
void post_batch(started_at_once& s, remote_ptr<word> p, done d) {
  global_memory::batch& b = s.batches.emplace_back(s.guest, host_id);
  b.write(p, 1);
  static_cast<void>(b.read(p));
  b.async_post(upon(std::move(d)));
}
void start_fetch_add(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_fetch_add(p.cast<nic_atomic<word>>(), 1, upon(std::move(d)));
}
void start_compare_exchange(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_compare_exchange(p.cast<nic_atomic<word>>(), 0, 1, upon(std::move(d)));
}
void start_exchange(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_exchange(p.cast<nic_atomic<word>>(), 1, upon(std::move(d)));
}
void allocate_word(started_at_once& s, remote_ptr<word>, done d) {
  s.guest.async_allocate<word>(host_id, 0, upon(std::move(d)));
}
void free_word(started_at_once& s, remote_ptr<word> p, done d) {
  s.guest.async_free(p, upon(std::move(d)));
}

/// Each operation joins by a node of its own.
struct joins : started_late, two_nodes {
  explicit joins(asio::io_context& io) : two_nodes(io) {
    for (int i = 0; i < started_count; ++i)
      others.emplace_back(io, pool, node_id(host_id + 1 + i));
  }
  void start_now(done d) override {
    others[next++].async_join(host.local_endpoint(), upon(std::move(d)));
  }
  std::deque<global_memory> others;
  std::size_t next = 0;
};

/// Releases of locks, each of its own.
struct unlocks : started_late, two_nodes {
  unlocks(asio::io_context& io, bool of_another_node) : two_nodes(io) {
    for (int i = 0; i < started_count; ++i) {
      alock& lock =
          all.emplace_back(of_another_node ? guest : host, make_in<alock_words>(io, *this));
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
      : two_nodes(io), lock(of_another_node ? guest : host, make_in<alock_words>(io, *this)) {
    lock.async_lock([this](error_code, alock_guard g) { held = std::move(g); });
    until(io, [this] { return bool(held); });
    io.restart();
  }
  void start(done d) override {
    lock.async_lock([d = std::move(d)](error_code, alock_guard g) {
      g.unlock();
      d();
    });
  }
  void complete() override { held.unlock(); }
  alock lock;
  alock_guard held;
};

} // namespace

std::vector<kind> kinds() {
  std::vector<kind> all{
      {"reads of global memory", make<started_at_once>(&start_read)},
      {"writes of global memory", make<started_at_once>(&start_write)},
      {"flushed writes of global memory", make<started_at_once>(&start_flushed_write)},
      {"batches of global memory", make<started_at_once>(&post_batch)},
      {"allocations of global memory", make<started_at_once>(&allocate_word)},
      {"releases of global memory", make<started_at_once>(&free_word)},
      {"joins", make<joins>(), false},
      {"locks of this node", make<locks>(false)},
      {"releases of locks of this node", make<unlocks>(false)},
  };
  if (open_device().has_atomics()) {
    all.push_back({"additions to global memory", make<started_at_once>(&start_fetch_add)});
    all.push_back({"comparisons in global memory", make<started_at_once>(&start_compare_exchange)});
    all.push_back({"exchanges in global memory", make<started_at_once>(&start_exchange), false});
    all.push_back({"locks of another node", make<locks>(true), false});
    all.push_back({"releases of locks of another node", make<unlocks>(true), false});
  }
  return all;
}

} // namespace test::asio_idle_global
