// SPDX-License-Identifier: BSL-1.0
//
// Tables of locks on two nodes, and coroutines of both nodes that take them: by `alock`, and by
// locks without it. Without `alock` a node takes its own locks by the device as well, because the
// device's atomic operations are not atomic with those of the CPU. An operation is a lock taken and
// given back.
#pragma once

#include "global_loop.hpp"

#include <asio_rdma/alock.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace bench {

/// A word that is 0, or the number of the lock's holder.
class spin_lock {
public:
  struct words {
    asio_rdma::nic_atomic<std::uint64_t> holder;
  };
  spin_lock(two_nodes&, asio_rdma::global_memory& m, std::uint64_t party)
      : memory_(m), me_(party + 1) {}

  asio::awaitable<void> lock(asio_rdma::remote_ptr<words> at) {
    at_ = at.member<&words::holder>();
    for (bool taken = false; !taken;) {
      const auto r = co_await memory_.async_compare_exchange(at_, 0, me_, asio::use_awaitable);
      taken = r.exchanged;
    }
  }
  asio::awaitable<void> unlock() {
    co_await memory_.async_compare_exchange(at_, me_, 0, asio::use_awaitable);
  }

private:
  asio_rdma::global_memory& memory_;
  std::uint64_t me_;
  asio_rdma::remote_ptr<asio_rdma::nic_atomic<std::uint64_t>> at_;
};

/// The queue lock of Mellor-Crummey and Scott: a waiting party polls a word of its own node.
class mcs_lock {
public:
  struct entry {
    asio_rdma::shared_word<asio_rdma::remote_ptr<entry>> next;
    asio_rdma::shared_word<std::uint64_t> waits;
  };
  struct words {
    asio_rdma::nic_atomic<asio_rdma::remote_ptr<entry>> tail;
  };
  mcs_lock(two_nodes& nodes, asio_rdma::global_memory& m, std::uint64_t)
      : memory_(m), me_(nodes.make<entry>(m, 1)) {}

  asio::awaitable<void> lock(asio_rdma::remote_ptr<words> at) {
    at_ = at.member<&words::tail>();
    entry& mine = *memory_.local(me_);
    mine.next.store(nullptr);
    mine.waits.store(1);
    const auto before = co_await memory_.async_exchange(at_, me_, asio::use_awaitable);
    if (before == nullptr)
      co_return;
    co_await memory_.async_write(before.member<&entry::next>(), me_, asio::use_awaitable);
    while (mine.waits.load() != 0)
      co_await asio::post(memory_.get_executor(), asio::use_awaitable);
  }
  asio::awaitable<void> unlock() {
    entry& mine = *memory_.local(me_);
    const auto left =
        co_await memory_.async_compare_exchange(at_, me_, nullptr, asio::use_awaitable);
    if (left.exchanged)
      co_return;
    while (mine.next.load() == nullptr)
      co_await asio::post(memory_.get_executor(), asio::use_awaitable);
    co_await memory_.async_write(mine.next.load().member<&entry::waits>(), 0, asio::use_awaitable);
  }

private:
  asio_rdma::global_memory& memory_;
  const asio_rdma::remote_ptr<entry> me_;
  asio_rdma::remote_ptr<asio_rdma::nic_atomic<asio_rdma::remote_ptr<entry>>> at_;
};

class asymmetric_lock {
public:
  using words = asio_rdma::alock_words;
  asymmetric_lock(two_nodes&, asio_rdma::global_memory& m, std::uint64_t) : memory_(m) {}

  asio::awaitable<void> lock(asio_rdma::remote_ptr<words> at) {
    held_.emplace(memory_, at);
    guard_ = co_await held_->async_lock(asio::use_awaitable);
  }
  asio::awaitable<void> unlock() {
    co_await held_->async_unlock(std::move(guard_), asio::use_awaitable);
  }

private:
  asio_rdma::global_memory& memory_;
  std::optional<asio_rdma::alock> held_;
  asio_rdma::alock_guard guard_;
};

template <class Lock>
class lock_loop final : public loop {
public:
  lock_loop(const plan& p, const cm_end& near) : plan_(p), nodes_(p, near) {
    for (std::uint64_t i = 0; i < parties; ++i) {
      asio_rdma::global_memory& m = i % 2 == 0 ? nodes_.a : nodes_.b;
      all_.push_back(std::make_unique<party>(nodes_, m, i));
    }
  }

  queue_counters counters() const override { return {}; }
  void serve() override {}

  void run(std::uint64_t operations) override {
    left_ = operations;
    nodes_.io.restart();
    unsigned ended = 0;
    for (const auto& p : all_)
      asio::co_spawn(nodes_.io, take(*p), [&](const std::exception_ptr& e) {
        if (e)
          std::rethrow_exception(e);
        if (++ended == all_.size())
          nodes_.io.stop();
      });
    nodes_.io.run();
  }

private:
  static constexpr std::uint64_t parties = 8;

  struct party {
    party(two_nodes& nodes, asio_rdma::global_memory& m, std::uint64_t number)
        : memory(m), lock(nodes, m, number), random(static_cast<unsigned>(number + 1)) {}
    asio_rdma::global_memory& memory;
    Lock lock;
    std::minstd_rand random;
  };

  asio::awaitable<void> take(party& p) {
    while (left_ != 0) {
      --left_;
      const bool own = p.random() % 100 < plan_.local;
      const bool of_a = own == (&p.memory == &nodes_.a);
      const std::uint64_t n = p.random() % plan_.locks;
      co_await p.lock.lock((of_a ? of_a_ : of_b_) + n);
      int& inside = inside_[2 * n + (of_a ? 0 : 1)];
      if (inside++ != 0)
        fail("lock", "two are inside");
      co_await asio::post(nodes_.io, asio::use_awaitable);
      --inside;
      co_await p.lock.unlock();
    }
  }

  plan plan_;
  two_nodes nodes_;
  using table = asio_rdma::remote_ptr<typename Lock::words>;
  const table of_a_{nodes_.make<typename Lock::words>(nodes_.a, plan_.locks)};
  const table of_b_{nodes_.make<typename Lock::words>(nodes_.b, plan_.locks)};
  std::vector<std::unique_ptr<party>> all_;
  std::vector<int> inside_ = std::vector<int>(2 * plan_.locks);
  std::uint64_t left_ = 0;
};

} // namespace bench
