// SPDX-License-Identifier: BSL-1.0
// Remote memory of a connection.
#include "connection/connection_impl.hpp"
#include "core/size_classes.hpp"

#include <algorithm>
#include <utility>

namespace asio_rdma::detail {
namespace {

grant_limits limits_of(const remote_memory_options& o, const device& d) {
  grant_limits l;
  l.rights = to_rights(o.rights);
  if (!d.has_atomics())
    l.rights = l.rights & (remote_rights::read | remote_rights::write);
  l.bytes = o.bytes;
  l.grants = o.grants;
  l.default_lease = o.default_lease;
  l.longest_lease = o.longest_lease;
  l.grace = o.grace;
  return l;
}

// The key of the memory's first bytes.
grant_key make_grant_key(const memory_pool& pool, const registered_buffer& memory,
                         std::size_t bytes, access rights, error_code& ec) noexcept {
  try {
    return {pool.get_protection_domain(), const_buffer(memory).first(bytes), rights, ec};
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
    return {};
  }
}

} // namespace

void grant_allocation::prepare(const registered_buffer& memory, error_code& ec) noexcept {
  memory.zero();
  key_ = make_grant_key(pool(), memory, bytes(), rights_, ec);
}

connection_regions::connection_regions(connection_impl& connection, frame_link& frames,
                                       const remote_memory_options& options)
    : connection_(connection),
      link_(connection.link()),
      inbox_(frames),
      grants_(frames, inbox_, limits_of(options, link_.member_device())),
      leases_(frames, inbox_) {}

void connection_regions::complete(region_operation& op, const error_code& ec,
                                  operation_list& done) {
  connection_.complete(op, ec, done);
}

// --- Memory of this side ---------------------------------------------------------------------

grant_record::grant_record(connection_regions& regions) noexcept
    : lent(regions.connection_), bind(regions, *this) {}

void connection_regions::give_back(grant_record& r) noexcept {
  if (r.lending || r.returned || r.key.is_open())
    return;
  r.lent.end();
  link_.drop(r.access);
  link_.drop(r.memory);
  r.waiter = nullptr;
  grant_records_.give_back(r);
}

void connection_regions::lend(region_operation& op, const registered_buffer& memory) {
  grants_.reserve_one();
  reserve_place();
  grant_record& r = grant_records_.take(*this);
  const bool writes =
      (op.lease.rights & (remote_rights::write | remote_rights::atomic)) != remote_rights::none;
  // The memory may be of another protection domain: each loan registers it.
  op.ec = memory.empty() || op.lease.rights == remote_rights::none
              ? error_code(asio::error::invalid_argument)
          : writes ? r.access.try_begin_write(memory)
                   : r.access.try_begin_read(memory);
  if (op.ec)
    return give_back(r);
  r.memory = memory;
  r.lent.begin(memory);
  r.bytes = memory.size();
  r.rights = op.lease.rights;
  r.lease = op.lease.lease;
  r.tag = op.lease.tag;
  r.waiter = &op;
  r.lending = true;
  op.lent = &r;
  grants_.lend(r);
}

void connection_regions::reserve_place() {
  if (granted_.size() < grants_.places())
    granted_.resize(2 * grants_.places());
}

void connection_regions::make_key(const grant_action& a) {
  error_code ec = link_.check();
  grant_record* record = static_cast<grant_record*>(a.lend);
  try {
    if (record == nullptr && !ec) {
      reserve_place();
      record = &grant_records_.take(*this);
    }
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  if (record == nullptr)
    return grants_.not_made(a.grant, ec);
  grant_record& r = *record;
  r.id = a.grant;
  granted_[a.grant & 0xffff] = &r;
  if (!ec && a.bytes == 0)
    ec = asio::error::invalid_argument;
  const auto rights = to_access(a.rights);
  if (!ec && a.lend == nullptr) {
    const memory_pool& pool = link_.pool();
    slow_allocations& allocations = connection_.allocations_;
    if (a.bytes > largest_small && !allocations.admits(pool, a.bytes, a.bytes))
      r.to_come = allocations.start<grant_allocation>(pool, a.bytes, rights);
    if (r.to_come) {
      ++to_come_;
      return connection_.look_for_memory();
    }
    r.memory = pool.allocate(a.bytes, ec);
    if (!ec)
      r.memory.zero();
  }
  if (!ec)
    r.key = make_grant_key(link_.pool(), r.memory, a.bytes, rights, ec);
  key_made(r, ec);
}

void connection_regions::look_for_memory() {
  if (to_come_ == 0)
    return;
  for (grant_record* const r : granted_) {
    if (r == nullptr || !r->to_come || !r->to_come->is_done())
      continue;
    const auto made = std::exchange(r->to_come, nullptr);
    --to_come_;
    error_code ec;
    r->memory = made->take(ec);
    r->key = made->take_key();
    key_made(*r, ec ? ec : link_.check());
  }
  if (to_come_ != 0)
    connection_.look_for_memory();
}

// The link ends, so the peer gets none of it.
void connection_regions::drop_to_come() noexcept {
  for (grant_record* const r : granted_) {
    if (r == nullptr || !r->to_come)
      continue;
    connection_.allocations_.cancel(*r->to_come);
    r->to_come.reset();
    not_made(*r, link_.check());
  }
  to_come_ = 0;
}

void connection_regions::key_made(grant_record& r, error_code ec) {
  const bool binds = !ec && r.key.window();
  if (binds)
    ec = bind(r);
  if (ec)
    not_made(r, ec);
  else if (!binds)
    made(r);
}

error_code connection_regions::bind(grant_record& r) {
  memory_window_impl& window = *r.key.window();
  r.bind.wr.opcode = IBV_WR_BIND_MW;
  r.bind.wr.bind_mw = {window.native_handle(), 0, r.key.binding()};
  error_code ec = link_.queue_pair()->prepare_bind(window, r.bind.wr);
  if (!ec && !link_.post(r.bind))
    ec = r.bind.ec;
  return ec;
}

grant_bind::grant_bind(connection_regions& regions, grant_record& r) noexcept
    : link_transfer(regions.link_,
                    [](link_transfer& t, operation_list&) {
                      const auto& self = static_cast<grant_bind&>(t);
                      self.owner.bound(self.grant);
                    }),
      owner(regions),
      grant(r) {}

void connection_regions::bound(grant_record& r) {
  if (r.bind.ec)
    not_made(r, r.bind.ec);
  else
    made(r);
}

void connection_regions::made(grant_record& r) {
  new_grants_ = true;
  grants_.made(r.id, r.key.remote(), protocol_clock::now());
}

void connection_regions::not_made(grant_record& r, const error_code& ec) {
  granted_[r.id & 0xffff] = nullptr;
  link_.end_key(r.key, r.memory, r.access);
  grants_.not_made(r.id, ec);
  give_back(r);
}

// Deregistering waits until the device no longer uses the key.
void connection_regions::end_key(const grant_action& a) {
  grant_record& r = *std::exchange(granted_[a.grant & 0xffff], nullptr);
  const bool ended = link_.end_key(r.key, r.memory, r.access);
  link_.drop(r.access);
  r.returned = ended && a.returned && !inbox_.dropping();
  if (r.returned)
    r.next_free = std::exchange(returned_, &r);
  give_back(r);
  grants_.ended(a.grant, ended ? error_code() : error::device_keeps_memory);
}

// --- Memory of the peer ----------------------------------------------------------------------

void connection_regions::start(region_operation& op) {
  if (op.why == region_operation::purpose::receive) {
    op.arrival.op = &op;
    inbox_.receive(op.arrival);
    return;
  }
  op.lease.op = &op;
  op.lease.what = op.why == region_operation::purpose::request ? lease_request::kind::memory
                                                               : lease_request::kind::renew;
  leases_.start(op.lease, protocol_clock::now());
}

void connection_regions::give(region_operation& op) {
  gift_record& r = gift_records_.take();
  r.what = lease_request::kind::give;
  r.id = op.lease.id;
  r.tag = op.lease.tag;
  r.waiter = &op;
  op.given = &r;
  leases_.start(r, protocol_clock::now());
}

void connection_regions::received(region_operation& op, operation_list& done) {
  const region_receive& a = op.arrival;
  if (a.ec)
    return complete(op, a.ec, done);
  if (a.returned) {
    grant_record** place = &returned_;
    while (*place != nullptr && (*place)->id != a.id)
      place = &(*place)->next_free;
    if (*place == nullptr)
      return complete(op, asio::error::no_memory, done);
    grant_record& r = **place;
    *place = r.next_free;
    r.returned = false;
    op.memory = std::move(r.memory);
    give_back(r);
    grants_.received(a.id);
    return complete(op, {}, done);
  }
  const auto lease = leases_.get(a.id);
  op.lease.op = &op;
  op.lease.id = a.id;
  if (lease && lease->until == protocol_clock::time_point::min()) { // the lease begins by a renewal
    op.lease.what = lease_request::kind::renew;
    op.lease.lease = {};
    leases_.start(op.lease, protocol_clock::now());
    return;
  }
  op.lease.ec = lease ? error_code() : error_code(error::lease_expired);
  if (lease)
    op.lease.result = *lease;
  leased(op, done);
}

void connection_regions::leased(region_operation& op, operation_list& done) {
  error_code ec = op.lease.ec;
  if (op.why != region_operation::purpose::renew) {
    try {
      if (!ec)
        op.region = connection_.make_region(op.lease.result);
    } catch (const std::bad_alloc&) {
      ec = asio::error::no_memory;
    }
    if (ec && (!op.lease.ec || op.why == region_operation::purpose::receive))
      release(op.lease.id);
  }
  complete(op, ec, done);
}

protocol_clock::time_point connection_regions::deadline(std::uint32_t id) const {
  const auto lease = leases_.get(id);
  const bool ended = !lease || leases_.check(id, protocol_clock::time_point::min());
  return ended ? protocol_clock::time_point::min() : lease->until;
}

// --- Driving ---------------------------------------------------------------------------------

bool connection_regions::run_grants(operation_list& done) {
  const grant_action a = grants_.next();
  switch (a.what) {
  case grant_action::kind::make:
    make_key(a);
    return true;
  case grant_action::kind::end:
    end_key(a);
    return true;
  case grant_action::kind::lent: {
    auto& r = static_cast<grant_record&>(*a.lend);
    r.lending = false;
    if (auto* const op = std::exchange(r.waiter, nullptr))
      complete(*op, r.ec, done);
    give_back(r);
    return true;
  }
  case grant_action::kind::recalled:
    complete(*static_cast<region_operation::revoking&>(*a.recall).op, a.recall->ec, done);
    return true;
  case grant_action::kind::none:
    break;
  }
  return false;
}

bool connection_regions::run(operation_list& done) {
  if (inbox_.dropping())
    while (returned_ != nullptr) {
      grant_record& r = *std::exchange(returned_, returned_->next_free);
      r.returned = false;
      give_back(r);
    }
  if (to_come_ != 0 && link_.failing()) [[unlikely]]
    drop_to_come();
  if (!grants_.may_act() && !leases_.may_act() && !inbox_.may_act())
    return false;
  if (run_grants(done))
    return true;
  if (lease_request* const l = leases_.next()) {
    if (l->what != lease_request::kind::give) {
      leased(*static_cast<region_operation::asking&>(*l).op, done);
      return true;
    }
    auto& r = static_cast<gift_record&>(*l);
    if (auto* const op = std::exchange(r.waiter, nullptr))
      complete(*op, r.ec, done);
    gift_records_.give_back(r);
    return true;
  }
  if (region_receive* const r = inbox_.next()) {
    received(*static_cast<region_operation::wait&>(*r).op, done);
    return true;
  }
  if (!link_.failing() && std::exchange(new_grants_, false))
    set_timer();
  return false;
}

void connection_regions::set_timer() {
  const auto when = grants_.next_expiry();
  if (when == protocol_clock::time_point::max())
    return;
  link_.call_at(link_impl::timer::expiry, when, [this] {
    grants_.expire(protocol_clock::now());
    set_timer();
  });
}

// A request that the protocol has taken continues without its operation. A region that has arrived
// is about to be delivered.
bool connection_regions::cancel(region_operation& op, asio::cancellation_type_t type,
                                operation_list& done) {
  switch (op.why) {
  case region_operation::purpose::request:
  case region_operation::purpose::renew:
    if (!leases_.cancel(op.lease))
      return false;
    break;
  case region_operation::purpose::receive:
    if (inbox_.cancel(op.arrival))
      break;
    if (!leases_.may_cancel(op.lease)) // the region has arrived, and its lease is being renewed
      return false;
    inbox_.put_back(op.lease.id, op.arrival.tag); // first, because it may throw
    leases_.cancel(op.lease);
    break;
  case region_operation::purpose::lend:
    if (!may_leave_effects(type))
      return false;
    op.lent->waiter = nullptr;
    break;
  case region_operation::purpose::give:
    if (!may_leave_effects(type))
      return false;
    op.given->waiter = nullptr;
    break;
  case region_operation::purpose::revoke:
    if (!may_leave_effects(type) || !grants_.cancel(op.recall))
      return false;
    break;
  }
  complete(op, asio::error::operation_aborted, done);
  return true;
}

} // namespace asio_rdma::detail
