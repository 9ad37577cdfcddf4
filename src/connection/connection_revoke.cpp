// SPDX-License-Identifier: BSL-1.0
// The end of the peer's access to memory of this side, by a function that the program calls.
#include <asio_rdma/detail/connection/loan_revocation.hpp>

#include "connection/connection_impl.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace asio_rdma::detail {

// --- One connection --------------------------------------------------------------------------

template <class Function>
void connection_regions::for_each_grant(const registered_buffer* memory, Function&& f) const {
  const auto* const begin =
      memory != nullptr ? static_cast<const std::byte*>(memory->data()) : nullptr;
  for (const grant_record* r : granted_) {
    if (r == nullptr)
      continue;
    const auto* const from = static_cast<const std::byte*>(r->memory.data());
    if (memory == nullptr || (from < begin + memory->size() && begin < from + r->memory.size()))
      f(r->id);
  }
}

std::size_t connection_regions::revoke(const registered_buffer* memory) {
  std::size_t n = 0;
  for_each_grant(memory, [&](std::uint32_t id) { n += grants_.revoke(id) ? 1u : 0u; });
  return n;
}

void connection_regions::revoke(region_operation& op, const registered_buffer* memory,
                                std::chrono::microseconds grace) {
  op.recall.op = &op;
  for_each_grant(memory, [&](std::uint32_t id) { op.recall.grants.push_back(id); });
  grants_.recall(op.recall, grace, protocol_clock::now());
  new_grants_ = true; // the grace may end before the next lease
}

std::size_t connection_impl::revoke(const registered_buffer* memory) {
  link_impl::visit v(link_);
  if (!regions_)
    return 0;
  const std::size_t n = regions_->revoke(memory);
  link_.do_or_fail([&] {
    while (regions_->run_grants(v.done)) // at once, even if the connection is about to end
      continue;
  });
  v.run();
  return n;
}

bool connection_impl::start_revoke(region_operation& op, const registered_buffer* memory,
                                   std::chrono::microseconds grace) {
  link_impl::visit v(link_);
  op.ec = link_.check();
  if (!regions_)
    return false;
  // If the connection has failed, the grants end with it, perhaps later.
  op.why = region_operation::purpose::revoke;
  op.recall.ec = op.ec;
  regions_->revoke(op, memory, grace); // first, because it may throw
  begin(op);
  v.advance();
  return true;
}

// --- All connections -------------------------------------------------------------------------

/// The part of a `loan_revocation` that one connection carries out.
class loan_share final : public region_operation {
public:
  explicit loan_share(std::shared_ptr<loan_revocation> whole) noexcept
      : region_operation(&loan_share::dispose_this), whole_(std::move(whole)) {}

private:
  static void dispose_this(operation* base, disposal how) {
    const std::unique_ptr<loan_share> self(static_cast<loan_share*>(base));
    if (how == disposal::destroy)
      return self->whole_->destroyed();
    // The loss of a connection ends its grants, so it is no error.
    const bool kept = self->ec == error::device_keeps_memory;
    self->whole_->ended(kept ? self->ec : error_code(),
                        {self->recall.count, self->recall.unconfirmed});
  }

  std::shared_ptr<loan_revocation> whole_;
};

void loan_revocation::start(const registered_buffer& memory, std::chrono::microseconds grace) {
  error_code ec;
  try {
    for (const auto& connection : loan::owners(memory)) {
      auto share = std::make_unique<loan_share>(shared_from_this());
      begin();
      try {
        if (connection->start_revoke(*share, &memory, grace))
          static_cast<void>(share.release()); // another thread may have disposed of it
      } catch (const std::bad_alloc&) {
        ec = asio::error::no_memory;
      }
      if (share != nullptr)
        ended({}, {});
    }
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  ended(ec, {}); // the count that `pending_` begins with
}

void loan_revocation::cancel(asio::cancellation_type_t type) {
  if (may_leave_effects(type) && !over_.exchange(true))
    complete(asio::error::operation_aborted, {});
}

void loan_revocation::ended(const error_code& ec, const revocation& part) {
  {
    const std::lock_guard lock(mutex_);
    if (ec)
      ec_ = ec;
    result_.grants += part.grants;
    result_.unconfirmed += part.unconfirmed;
    if (--pending_ != 0)
      return;
  }
  if (!over_.exchange(true)) // only the last one comes here, so no mutex is needed
    complete(ec_, result_);
}

} // namespace asio_rdma::detail
