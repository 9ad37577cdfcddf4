// SPDX-License-Identifier: BSL-1.0
// The chain of accesses of a remote party: it is posted, refused or done.
#include "locks/alock_remote_party.hpp"

#include <array>
#include <cassert>
#include <cstddef>
#include <utility>

namespace asio_rdma::detail {

bool alock_remotes::aim(const party& p, const alock_access& a, remote_buffer& target) noexcept {
  std::uint64_t base = p.lock_at;
  if (a.word == alock_word::next || a.word == alock_word::turn) {
    const remote_word d(a.descriptor);
    if (d.segment() != p.from->segment_number || !descriptors_fit(*p.from, d.offset(), 1))
      return false;
    base = d.offset();
  }
  const remote_buffer& s = p.from->segment;
  target = {s.address + base + alock_layout::offset(a.word), sizeof(std::uint64_t), s.rkey};
  return true;
}

// Posts the chain. Returns false with the error if nothing is outstanding.
bool alock_remotes::post(party& p, error_code& ec) {
  assert(p.chain.size() < party::max_chain); // one more access may follow
  std::array<remote_work, party::max_chain> works{};
  std::size_t n = 0;
  const auto add = [&](const remote_buffer& target, ibv_wr_opcode opcode,
                       std::uint64_t value) -> remote_work& {
    std::uint64_t& word = p.word(n);
    word = value;
    works[n] = work_on(target, opcode);
    works[n].local = &p.payloads[n].emplace(mutable_buffer(&word, sizeof word, p.words.lkey()));
    works[n].found = &word;
    return works[n++];
  };
  remote_buffer target;
  for (const alock_access& a : p.chain) {
    if (!aim(p, a, target)) {
      ec = error::protocol_violation;
      return false;
    }
    if (a.what == alock_access::kind::compare_exchange) {
      remote_work& w = add(target, IBV_WR_ATOMIC_CMP_AND_SWP, 0);
      w.compare_add = a.expected;
      w.swap = a.value;
    } else {
      const bool reads = a.what == alock_access::kind::read;
      add(target, reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, a.value);
    }
  }
  p.asked_of = p.protocol->waits_for();
  if (p.asked_of != 0) {
    const alock_access of_him{.word = alock_word::next, .descriptor = p.asked_of};
    if (!aim(p, of_him, target)) {
      ec = error::protocol_violation;
      return false;
    }
    target.address += offsetof(alock_descriptor, dead) - alock_layout::offset(alock_word::next);
    add(target, IBV_WR_RDMA_READ, 0);
  }
  if (!p.from->link) {
    ec = asio::error::operation_aborted;
    return false;
  }
  p.ec = p.first = {};
  // Posts the chain behind operations that the same program started earlier, which may wait for
  // their turn: other nodes see their effects before the lock is released.
  p.taken = false;
  const auto start = [works, n](connection_impl& link, party& which) {
    which.taken = true; // once started, other threads may read the party
    try {
      if (link.start(which, {works.data(), n}))
        return true;
    } catch (...) {
      which.taken = false;
      throw;
    }
    which.taken = false;
    return false;
  };
  if (p.from->users->start_behind(p, start))
    return true;
  ec = p.ec;
  return false;
}

// Called if nothing of the chain has been posted. Returns false if the chain will be posted after a
// pause. A lane that has failed for lack of memory reports the same error, but permanently.
bool alock_remotes::on_refused(party& p, const error_code& ec) noexcept {
  if (ec == boost::system::errc::not_enough_memory && p.from->link &&
      p.from->link->link().is_alive()) {
    p.unposted = true;
    pause(p);
    return false;
  }
  // A party that takes this party for alive would wait forever.
  if (!p.protocol->on_refused(ec) && p.from->link)
    p.from->link->link().end(ec);
  return true;
}

void alock_remotes::on_chain(party& p) {
  const auto keep = p.self;
  const lock l(mutex_);
  if (!p.taken) { // the chain waited for its turn
    if (on_refused(p, p.ec))
      run(p);
    return;
  }
  if (std::exchange(p.paused, false))
    p.begin_looking();
  for (std::size_t i = 0; i < p.chain.size(); ++i)
    p.chain[i].seen = p.word(i);
  p.protocol->on_done(p.ec);
  if (!p.ec && p.asked_of != 0 && p.word(p.chain.size()) != 0)
    p.protocol->on_dead(p.asked_of);
  run(p);
}

} // namespace asio_rdma::detail
