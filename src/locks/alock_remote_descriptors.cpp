// SPDX-License-Identifier: BSL-1.0
// The descriptors of remote parties, which a lock's node lends.
#include "locks/alock_remote_party.hpp"

#include <algorithm>
#include <cassert>

namespace asio_rdma::detail {
namespace {

// The number of descriptors in one request, if no more are needed at once.
constexpr std::uint64_t usual_descriptors = 16;

} // namespace

/// Asks a node for descriptors.
class alock_remotes::request final : public global_request {
public:
  request(std::shared_ptr<alock_remotes> all, descriptor_set& p, std::uint64_t count)
      : global_request(&request::answered), all_(std::move(all)), set_(p), count_(count) {
    message.what = global_message::kind::descriptors;
    message.node = p.node;
    message.segment = p.segment_number;
    message.value = count;
  }

private:
  static void answered(operation* base, disposal how) {
    const std::unique_ptr<request> r(&static_cast<request&>(static_cast<global_request&>(*base)));
    if (how == disposal::destroy)
      r->fail(asio::error::operation_aborted);
    r->all_->on_answer(r->set_, r->ec, r->message.value, r->count_);
  }

  const std::shared_ptr<alock_remotes> all_;
  descriptor_set& set_;
  const std::uint64_t count_;
};

void alock_remotes::ask(descriptor_set& from) noexcept {
  if (from.asked || from.waiting.empty())
    return;
  const auto memory = memory_.lock();
  if (closed_ || !memory)
    return fail_waiting(from, asio::error::operation_aborted);
  const std::uint64_t count = std::clamp<std::uint64_t>(from.waiting.size(), usual_descriptors,
                                                        global_message::max_descriptors);
  try {
    auto r = std::make_unique<request>(shared_from_this(), from, count);
    from.asked = memory->start(*r, from.node);
    if (from.asked)
      static_cast<void>(r.release());
    else
      fail_waiting(from, r->ec);
  } catch (const std::bad_alloc&) {
    fail_waiting(from, asio::error::no_memory);
  }
}

void alock_remotes::on_answer(descriptor_set& from, error_code ec, std::uint64_t offset,
                              std::uint64_t count) noexcept {
  const lock l(mutex_);
  assert(from.asked);
  from.asked = false;
  if (closed_)
    ec = asio::error::operation_aborted;
  else if (!ec && (!descriptors_fit(from, offset, count) || knows_any(from, offset, count)))
    ec = error::protocol_violation;
  if (ec)
    return fail_waiting(from, ec);
  try {
    add_descriptors(from, remote_word(id_, from.segment_number, offset).bits(), count);
  } catch (const std::bad_alloc&) {
    if (from.free.empty())
      return fail_waiting(from, asio::error::no_memory);
  }
  while (!from.free.empty() && !from.waiting.empty()) {
    auto& op = static_cast<alock_operation&>(from.waiting.front());
    from.waiting.pop_front();
    begin(from, op);
  }
  ask(from);
}

// Reserves room in the free list for each descriptor, so that returning one cannot fail.
void alock_remotes::add_descriptors(descriptor_set& to, std::uint64_t first, std::uint64_t count) {
  to.free.reserve(to.parties.size() + count);
  for (std::uint64_t i = count; i-- != 0;) {
    const std::uint64_t d = first + i * sizeof(alock_descriptor);
    to.parties.emplace(d, nullptr);
    to.free.push_back(d);
  }
}

void alock_remotes::fail_waiting(descriptor_set& from, const error_code& ec) noexcept {
  while (!from.waiting.empty()) {
    auto& op = static_cast<alock_operation&>(from.waiting.front());
    from.waiting.pop_front();
    complete(op, ec);
  }
}

bool alock_remotes::descriptors_fit(const descriptor_set& p, std::uint64_t offset,
                                    std::uint64_t count) noexcept {
  const std::uint64_t bytes = count * sizeof(alock_descriptor);
  return offset % alignof(alock_descriptor) == 0 && bytes <= p.segment.size &&
         offset <= p.segment.size - bytes;
}

// A node that gives a descriptor twice would give it to two parties.
bool alock_remotes::knows_any(const descriptor_set& s, std::uint64_t offset,
                              std::uint64_t count) const noexcept {
  const std::uint64_t first = remote_word(id_, s.segment_number, offset).bits();
  for (std::uint64_t i = 0; i != count; ++i)
    if (s.parties.contains(first + i * sizeof(alock_descriptor)))
      return true;
  return false;
}

} // namespace asio_rdma::detail
