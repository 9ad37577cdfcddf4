// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/connection/connection_arguments.hpp>

#include "connection/connection_impl.hpp"
#include "locks/alock_remote.hpp"
#include "locks/alock_timer.hpp"

#include <array>
#include <memory>
#include <optional>

namespace asio_rdma::detail {

/// An acquisition and its outstanding chain of accesses.
class alock_remotes::party final : public remote_operation, public alock_party {
public:
  explicit party(alock_remotes& of) noexcept : remote_operation(&party::chain_done), all(of) {}

  bool unlock(alock_operation* op) noexcept override {
    const auto keep = self;
    const std::lock_guard guard(all.mutex_);
    const bool waits =
        op != nullptr && (op->view->takes_by(all) ? all.count(*op) : op->view->wait_for(*op, keep));
    waiter = waits ? op : nullptr;
    protocol->unlock();
    begin_looking();
    all.run(*this);
    return waits;
  }

  void look_again() {
    std::shared_ptr<void> keep; // keeps the other parties as well
    const std::lock_guard guard(all.mutex_);
    keep = next_turn.end();
    all.look(*this);
  }

  // The party now waits for something else.
  void begin_looking() noexcept {
    looks = 0;
    if (timer)
      timer->begin();
  }

  static void chain_done(operation* base, disposal how) {
    auto& p = static_cast<party&>(static_cast<remote_operation&>(*base));
    if (how == disposal::destroy)
      p.fail(asio::error::operation_aborted);
    p.all.on_chain(p);
  }

  static constexpr std::size_t max_chain = 4;

  std::uint64_t& word(std::size_t i) const noexcept {
    return static_cast<std::uint64_t*>(words.data())[i];
  }

  alock_remotes& all;                     // its lock guards the other members
  std::optional<alock_protocol> protocol; // set while the party takes part
  descriptor_set* from = nullptr;
  std::uint64_t descriptor = 0;
  std::uint64_t lock_at = 0; // the offset in the segment
  alock_operation* waiter = nullptr;
  std::shared_ptr<alock_remotes> self; // set while the party takes part
  std::unique_ptr<alock_timer> timer;
  unsigned looks = 0;
  alock_action::kind looks_as = alock_action::kind::wait;
  alock_next_turn<party> next_turn{*this};
  std::span<alock_access> chain;
  bool unposted = false; // the chain, as there was no memory to post it
  bool taken = false;    // the chain was given to the link: it may have taken effect
  bool paused = false;   // since memory ran out, until the next chain is done
  // The values of the chain, and the word that tells whether the awaited party is alive. Registered
  // in advance, so that a queued party needs no memory to leave the queue.
  registered_buffer words;
  std::array<std::optional<payload_of<mutable_buffer>>, max_chain> payloads;
  std::uint64_t asked_of = 0; // the party that this chain checks for life, or 0
  party* next_free = nullptr;
};

} // namespace asio_rdma::detail
