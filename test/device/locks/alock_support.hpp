// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <asio_rdma/alock.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <atomic>
#include <utility>

namespace test {

/// The result of an acquisition: a guard or an error.
struct acquisition {
  auto handler() {
    return [this](error_code e, alock_guard g) {
      ec = e;
      guard = std::move(g);
      done = true;
    };
  }
  error_code ec;
  alock_guard guard;
  bool done = false;
};

/// A lock in the host's segment, and a party of each cohort.
struct lock_scene : world {
  explicit lock_scene(const global_memory_options& of_guest = {}) : world(of_guest) {}

  acquisition take(alock& lock) {
    acquisition a;
    lock.async_lock(a.handler());
    until([&] { return a.done; });
    return a;
  }
  error_code give_back(alock& lock, alock_guard g) {
    return ask<void>([&](auto h) { lock.async_unlock(std::move(g), h); }).ec;
  }
  bool atomics() {
    if (!dev.has_atomics())
      not_on_this_device("atomic operations");
    return dev.has_atomics();
  }
  /// The tails of the queues, local and remote.
  std::array<std::uint64_t, 2> tails() const {
    const auto* const words = host.local(at.cast<cpu_atomic<std::uint64_t>>());
    return {words[0].load(), words[1].load()};
  }
  bool is_free() const { return tails() == std::array<std::uint64_t, 2>{}; }
  /// Starts an acquisition. It is in the queue when this returns.
  void queue(alock& lock, acquisition& a) {
    const auto before = tails();
    lock.async_lock(a.handler());
    until([&] { return tails() != before; });
  }
  /// Does something else meanwhile, so that a forbidden event would have time to happen.
  void pass_time() {
    for (int i = 0; i < 20; ++i)
      static_cast<void>(read(root_of(host_id)));
  }

  remote_ptr<alock_words> at = make<alock_words>();
  alock local{host, at}, remote{guest, at};
};

/// The data that a lock protects: three words, incremented by one party at a time, and a request to
/// stop.
struct protectorate {
  shared_word<std::uint64_t> words[3], stop;
};

struct tally {
  int inside = 0, entered = 0, broken = 0;
  error_code ec;
  std::atomic<int> left{0}; // the number of parties that have ended
};

/// Takes the lock `times` times and increments each word: by the device or, on the words' own node,
/// by the CPU. Then the words of a party that had no error are in memory.
inline asio::awaitable<void> raise(global_memory& m, remote_ptr<alock_words> at,
                                   remote_ptr<protectorate> p, int times, tally& t,
                                   alock_options options = {}) {
  alock lock(m, at, options);
  protectorate* const here = m.local(p);
  const auto word = p.cast<shared_word<std::uint64_t>>();
  bool stop = false;
  error_code ec;
  for (int i = 0; i < times && !stop; ++i) {
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    alock_guard held = co_await lock.async_lock(token);
    if (ec)
      break;
    t.broken += t.inside++ != 0;
    std::array<std::uint64_t, 3> seen{};
    if (here != nullptr) {
      for (std::size_t w = 0; w < 3; ++w)
        seen[w] = here->words[w].load();
      stop = here->stop.load() != 0;
      co_await asio::post(m.get_executor(), asio::use_awaitable);
      for (std::size_t w = 0; w < 3; ++w)
        here->words[w].store(seen[w] + 1);
    } else {
      global_memory::batch b(m, p.node());
      const auto first = b.read(word), second = b.read(word + 1), third = b.read(word + 2);
      const auto last = b.read(word + 3);
      co_await b.async_post(token);
      if (ec)
        break;
      seen = {b[first], b[second], b[third]};
      stop = b[last] != 0;
      b.clear();
      for (std::size_t w = 0; w < 3; ++w)
        b.write(word + w, seen[w] + 1);
      co_await b.async_post(token);
      if (ec)
        break;
    }
    ++t.entered;
    t.broken += seen[0] != seen[1] || seen[1] != seen[2];
    --t.inside;
    if (i % 2 == 0)
      co_await lock.async_unlock(std::move(held), token);
    if (ec)
      break;
  }
  if (ec)
    t.ec = ec;
  else if (here == nullptr) // a READ is answered after the placement of the WRITEs before it
    co_await m.async_read(word, asio::redirect_error(asio::use_awaitable, ec));
  ++t.left;
}

} // namespace test
