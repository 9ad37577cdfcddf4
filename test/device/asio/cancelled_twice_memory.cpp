// SPDX-License-Identifier: BSL-1.0
// Waits for events and for access, and every operation of global memory and of locks, cancelled
// twice by each pair of types.
#include "device/asio/cancelled_twice.hpp"
#include "device/locks/alock_support.hpp"
#include "interposer/faults.hpp"

#include <asio_rdma/device_events.hpp>
#include <asio_rdma/global_counter.hpp>
#include <asio_rdma/single_writer.hpp>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace test::cancelled_twice_memory_tests {
namespace {

/// Another wait receives the next event.
struct event_scene {
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  void start(twice& c) {
    events.async_wait_event(c.handler());
    events.async_wait_event(other.handler());
  }
  void proceed(bool) {
    CHECK(other.calls == 0);
    faults.raise_port_event(IBV_EVENT_PORT_ACTIVE, 1);
    until([&] { return other.done(); });
    CHECK(other.succeeded());
  }

  device dev = open_device();
  faults::injector faults{dev.native_handle()};
  outcome<device_event> other;
  asio::io_context io{1};
  device_events events{io, dev};
};

/// A buffer that is in use. Another wait for access is behind the one that is cancelled.
struct access_scene {
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  void proceed(bool) {
    outcome<buffer_access> other;
    buffer.async_read_access(io.get_executor(), other.handler());
    io.restart();
    io.poll();
    CHECK(other.calls == 0);
    writer.reset();
    until([&] { return other.done(); });
    CHECK(other.succeeded());
    CHECK(other.value);
    other.value.reset();
    CHECK(buffer.try_write_access());
  }

  asio::io_context io{1};
  memory_pool pool{protection_domain(open_device())};
  registered_buffer buffer = pool.allocate(64);
  buffer_access writer = buffer.try_write_access();
};

} // namespace

TEST_CASE("a wait for a device's event takes no event when it is cancelled twice") {
  check_on<event_scene>({{"wait for an event", fate::taken_back, [](event_scene& s, twice& c) {
                            s.start(c);
                          }}});
}

TEST_CASE("a wait for access to a buffer is taken back, however often it is cancelled") {
  check_on<access_scene>({
      {"read access", fate::taken_back,
       [](access_scene& s, twice& c) {
         s.buffer.async_read_access(s.io.get_executor(), c.handler());
       }},
      {"write access", fate::taken_back,
       [](access_scene& s, twice& c) {
         s.buffer.async_write_access(s.io.get_executor(), c.handler());
       }},
  });
}

// --- Global memory -----------------------------------------------------------------------------

namespace {

using word = std::uint64_t;
using counted = single_writer<word>;

/// Two nodes, and a word in the memory of the host. Afterwards the guest uses other memory.
struct global_scene : world {
  static global_memory_options at_most(std::size_t operations) {
    global_memory_options o;
    o.in_flight = operations;
    return o;
  }
  explicit global_scene(const global_memory_options& o = {}) : world(o) {}
  void proceed(bool broken) {
    if (broken) {
      CHECK(read(root_of(host_id)).ec);
      return;
    }
    CHECK(read(root_of(host_id)).succeeded());
    const auto made = make<word>();
    CHECK(!write(made, 5));
    CHECK(read(made).value == 5);
  }

  const remote_ptr<word> place = make<word>();
  const remote_ptr<nic_atomic<word>> atomic_place = place.cast<nic_atomic<word>>();
  registered_buffer own = pool.allocate(sizeof(word));
  char plain[sizeof(word)] = {};
  std::optional<global_memory::batch> batch;
  std::optional<counter<asio::any_io_executor>> count;
  std::optional<barrier<asio::any_io_executor>> gate;
};

/// The only place is in use, so the operation waits for it.
struct full_memory : global_scene {
  full_memory() : global_scene(at_most(1)) { guest.async_read(root_of(host_id), first.handler()); }
  void proceed(bool broken) {
    until([&] { return first.done(); });
    CHECK(first.succeeded());
    global_scene::proceed(broken);
    CHECK(read(place).value == 0); // the operation has not happened
  }
  outcome<remote_ptr<void>> first;
};

/// Operations on the memory of another node. `effect` is the fate of those that change the memory,
/// `view` of those that use a buffer of the caller.
template <class Scene>
std::vector<subject<Scene>> on_another_node(const device& d, fate effect, fate view) {
  std::vector<subject<Scene>> all{
      {"read", fate::taken_back,
       [](global_scene& s, twice& c) {
         s.guest.async_read(s.place, c.handler());
       }},
      {"read to a buffer", fate::taken_back,
       [](global_scene& s, twice& c) {
         s.guest.async_read(s.place, s.own, c.handler());
       }},
      {"read to a view", view,
       [](global_scene& s, twice& c) {
         s.guest.async_read(s.place, mutable_buffer(s.own), c.handler());
       }},
      {"read to plain memory", fate::taken_back,
       [](global_scene& s, twice& c) {
         s.guest.async_read(s.place, asio::buffer(s.plain), c.handler());
       }},
      {"value of a counter", fate::taken_back,
       [](global_scene& s, twice& c) {
         s.count.emplace(s.guest, s.place.cast<counter_word>());
         s.count->async_get(c.handler());
       }},
      {"write", effect,
       [](global_scene& s, twice& c) {
         s.guest.async_write(s.place, 1, c.handler());
       }},
      {"write that is flushed", effect,
       [](global_scene& s, twice& c) {
         s.guest.async_write(s.place, 1, visibility::flushed, c.handler());
       }},
      {"write from a buffer", effect,
       [](global_scene& s, twice& c) {
         std::memset(s.own.data(), 1, s.own.size());
         s.guest.async_write(s.place, s.own, c.handler());
       }},
      {"write from a view", view,
       [](global_scene& s, twice& c) {
         std::memset(s.own.data(), 1, s.own.size());
         s.guest.async_write(s.place, const_buffer(s.own), c.handler());
       }},
      {"write from plain memory", effect,
       [](global_scene& s, twice& c) {
         std::memset(s.plain, 1, sizeof s.plain);
         s.guest.async_write(s.place, asio::buffer(s.plain), c.handler());
       }},
      {"batch", effect,
       [](global_scene& s, twice& c) {
         s.batch.emplace(s.guest, host_id);
         s.batch->write(s.place, 1);
         static_cast<void>(s.batch->read(s.place));
         s.batch->async_post(c.handler());
       }},
  };
  if (d.has_atomics()) {
    all.push_back({"compare and exchange", effect, [](global_scene& s, twice& c) {
                     s.guest.async_compare_exchange(s.atomic_place, 0, 1, c.handler());
                   }});
    all.push_back({"fetch and add", effect, [](global_scene& s, twice& c) {
                     s.guest.async_fetch_add(s.atomic_place, 1, c.handler());
                   }});
    all.push_back({"exchange", effect, [](global_scene& s, twice& c) {
                     s.guest.async_exchange(s.atomic_place, 1, c.handler());
                   }});
    all.push_back({"increment of a counter", effect, [](global_scene& s, twice& c) {
                     s.count.emplace(s.guest, s.place.cast<counter_word>());
                     s.count->async_add(1, c.handler());
                   }});
    all.push_back({"arrival at a barrier", fate::taken_back, [](global_scene& s, twice& c) {
                     s.gate.emplace(s.guest, s.place.cast<counter_word>(), 2);
                     s.gate->async_arrive_and_wait(c.handler());
                   }});
  }
  return all;
}

} // namespace

TEST_CASE("an operation that waits for a place of global memory does not happen, however often it "
          "is cancelled") {
  check_on(on_another_node<full_memory>(open_device(), fate::taken_back, fate::taken_back));
}

TEST_CASE("a posted operation on global memory ends at once, except a change by total, or ends the "
          "connection if the caller keeps the memory") {
  check_on(on_another_node<global_scene>(open_device(), fate::let_go, fate::ends_connection));
}

TEST_CASE("a message to a node, or a wait for a node's value, is cancelled twice") {
  check_on<global_scene>({
      {"allocate", fate::taken_back,
       [](global_scene& s, twice& c) {
         s.guest.async_allocate<word>(host_id, 0, c.handler());
       }},
      {"free", fate::let_go,
       [](global_scene& s, twice& c) {
         s.guest.async_free(s.make<word>(), c.handler());
       }},
      {"join", fate::taken_back,
       [](global_scene& s, twice& c) {
         s.host.async_join(s.host.local_endpoint(), c.handler());
       }},
      {"load of a value that is not whole", fate::taken_back,
       [](global_scene& s, twice& c) {
         const auto p = s.make<counted>();
         const auto check = p.cast<counted::image>().member<&counted::image::check>();
         if (s.write(check, word(1)))
           throw std::runtime_error("not written");
         async_load(s.guest, p, c.handler());
       }},
  });
}

// --- Locks -------------------------------------------------------------------------------------

namespace {

/// A lock that is held. Another party acquires it afterwards.
struct held_lock : lock_scene {
  held_lock() : held(take(local)) {}
  void proceed(bool) {
    acquisition next;
    queue(local, next);
    if (held.guard) {
      pass_time();
      CHECK_FALSE(next.done);
      held.guard.unlock();
    }
    until([&] { return next.done; });
    CHECK(next.guard);
    next.guard.unlock();
    until([&] { return is_free(); });
  }
  acquisition held;
};

/// Returns when the party is in the queue.
void queue_up(held_lock& s, alock& lock, twice& c) {
  const auto before = s.tails();
  lock.async_lock(c.handler());
  s.until([&] { return s.tails() != before; });
}

} // namespace

TEST_CASE("an acquisition passes the lock on when it is cancelled twice, and a release continues") {
  std::vector<subject<held_lock>> all{
      {"acquisition by this node", fate::taken_back,
       [](held_lock& s, twice& c) {
         queue_up(s, s.local, c);
       }},
      {"release", fate::left_alone,
       [](held_lock& s, twice& c) {
         s.local.async_unlock(std::move(s.held.guard), c.handler());
       }},
  };
  if (open_device().has_atomics()) {
    all.push_back({"acquisition by another node that has begun", fate::taken_back,
                   [](held_lock& s, twice& c) {
                     s.remote.async_lock(c.handler());
                   }});
    all.push_back({"acquisition by another node", fate::taken_back, [](held_lock& s, twice& c) {
                     queue_up(s, s.remote, c);
                   }});
    all.push_back({"release by another node", fate::left_alone, [](held_lock& s, twice& c) {
                     s.held.guard.unlock();
                     s.held = s.take(s.remote);
                     s.remote.async_unlock(std::move(s.held.guard), c.handler());
                   }});
  }
  check_on(all);
}

} // namespace test::cancelled_twice_memory_tests
