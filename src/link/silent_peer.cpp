// SPDX-License-Identifier: BSL-1.0
#include "link/silent_peer.hpp"

#include "link/link_impl.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

constexpr std::chrono::milliseconds longest_time = std::chrono::hours(24);

} // namespace

keep_alive_probe::keep_alive_probe(link_impl& link) noexcept
    : link_transfer(link, [](link_transfer& t, operation_list&) {
        static_cast<keep_alive_probe&>(t).asking_ = false;
      }) {}

void keep_alive_probe::start(std::chrono::milliseconds interval) {
  if (interval <= interval.zero())
    return;
  // Checks twice per interval: a peer that falls silent after one check is probed at the next but
  // one.
  pause_ = std::chrono::microseconds(std::min(interval, longest_time)) / 2;
  wait();
}

void keep_alive_probe::wait() {
  link().call_at(link_impl::timer::alive, protocol_clock::now() + pause_, [this] {
    if (!link().failing())
      check();
  });
}

// While a signaled request is outstanding, the queue pair asks the peer and gives up in time (the
// device may have carried out an unsignaled one, such as the bind of an offer without credits). On
// iWARP it does not: TCP asks for the peer's acknowledgement only, and nothing asks for the answer
// of a READ. rxe must not be asked twice: it refuses to repeat a READ after a write of zero bytes
// (drivers/infiniband/sw/rxe/rxe_resp.c, read_reply).
void keep_alive_probe::check() {
  if (link().waits_for_peer()) {
    if (std::exchange(unheard_, true))
      return link().fail(asio::error::timed_out);
    return wait();
  }
  const bool is_asked = asking_ || (link().member_device().type() != transport::iwarp &&
                                    link().queue_pair()->awaits_send());
  if (signs_ == signs_before_ && !is_asked) {
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {};
    asking_ = link().post(*this);
  }
  signs_before_ = signs_;
  wait();
}

// --- READs -----------------------------------------------------------------------------------

void read_deadline::set(std::chrono::milliseconds time) noexcept {
  pause_ = std::chrono::microseconds(std::clamp(time, time.zero(), longest_time)) / 2;
}

// The timer runs on while there are READs, so that most of them do not set it. If there is no
// memory for it, a later READ sets it. Few READs of a pause read the clock: those until the peer
// has earned as much.
void read_deadline::posted(std::uint64_t bytes) noexcept {
  bytes_ += bytes;
  const bool begins = !waiting_ && pause_ > pause_.zero();
  if (begins)
    pace_.begin();
  if (reads_++ == 0 && pace_.needs_time(pause_))
    pace_.first_posted(protocol_clock::now());
  if (begins) {
    try {
      wait();
    } catch (const std::bad_alloc&) {
      waiting_ = false;
    }
  }
}

void read_deadline::returned(std::uint64_t bytes) noexcept {
  bytes_ -= bytes;
  pace_.answered(bytes);
  if (--reads_ == 0 && pace_.needs_time(pause_))
    pace_.last_answered(protocol_clock::now());
}

void read_deadline::wait() {
  waiting_ = true;
  link_.call_at(link_impl::timer::reads, protocol_clock::now() + pause_, [this] {
    waiting_ = false;
    if (reads_ != 0 && !link_.failing())
      check();
  });
}

void read_deadline::check() {
  const std::chrono::microseconds for_bytes(std::min<std::uint64_t>(bytes_, std::int64_t(1) << 50));
  if (pace_.look(protocol_clock::now(), pause_) >= 2 * pause_ + for_bytes)
    link_.fail(asio::error::timed_out);
  else
    wait();
}

} // namespace asio_rdma::detail
