// SPDX-License-Identifier: BSL-1.0
// WRITEs whose bytes are in the peer's memory some time after their completion.
#include "device/queue_pair.hpp"

namespace soft {
namespace {

constexpr std::size_t most_bytes = 4 << 20; // of a queue pair, as a socket has room

} // namespace

bool late_writes::add(std::uint32_t key, std::uint64_t address, const spans& bytes,
                      clock::duration time) {
  if (bytes.bytes > most_bytes - bytes_)
    return false;
  late_write& w = all_.emplace_back(
      late_write{key, address, std::vector<std::byte>(bytes.bytes), clock::now() + time});
  spans copy;
  copy.add(w.bytes.data(), w.bytes.size());
  transfer(copy, bytes);
  bytes_ += w.bytes.size();
  if (all_.size() == 1)
    wait_until(w.due);
  return true;
}

bool late_writes::arrive(queue_pair& to, clock::time_point now) {
  for (; !all_.empty() && all_.front().due <= now; all_.pop_front()) {
    late_write& w = all_.front();
    std::byte* const memory =
        to.remote_memory(w.key, w.address, w.bytes.size(), IBV_ACCESS_REMOTE_WRITE);
    if (memory == nullptr) {
      lose();
      return false;
    }
    move_bytes(memory, w.bytes.data(), w.bytes.size());
    bytes_ -= w.bytes.size();
  }
  if (!all_.empty())
    wait_until(all_.front().due);
  return true;
}

void late_writes::lose() {
  all_.clear();
  bytes_ = 0;
}

void late_writes::run() { from_.late_writes_are_due(); }

// False: the WRITE is carried out at once. A refusal is reported by the WRITE itself, as by
// adapters of InfiniBand's kind, if it is one already.
bool queue_pair::write_late(const send_work& r, const queue_pair& to, const spans& from) {
  if (!is_reliable() || from.bytes == 0 ||
      to.remote_memory(r.key, r.address, from.bytes, IBV_ACCESS_REMOTE_WRITE) == nullptr)
    return false;
  if (!late_)
    late_ = std::make_unique<late_writes>(*this);
  return late_->add(r.key, r.address, from, habits().late_placement);
}

// False: the peer has refused one.
bool queue_pair::late_writes_arrive(queue_pair& to, clock::time_point now) {
  if (late_->arrive(to, now))
    return true;
  to.fail_by_peer(IBV_EVENT_QP_ACCESS_ERR);
  return false;
}

void queue_pair::late_writes_are_due() {
  if (is_interrupted())
    return late_->wait_until(down_until_);
  queue_pair* const to = ready_peer();
  if (to == nullptr)
    return late_->lose();
  if (!late_writes_arrive(*to, clock::now()))
    fail();
}

// Bytes that are on their way arrive before the end, unless the link carries nothing.
void queue_pair::end_late_writes() {
  if (!late_)
    return;
  if (queue_pair* const to = is_interrupted() ? nullptr : ready_peer())
    late_writes_arrive(*to);
  else
    late_->lose();
}

} // namespace soft
