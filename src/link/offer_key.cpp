// SPDX-License-Identifier: BSL-1.0
// The keys of a link: of memory that is offered to the peer, and of memory that is granted to it.
#include "link/offer_key.hpp"

#include "link/link_session.hpp"
#include "memory/memory_pool_impl.hpp"
#include "verbs/withheld.hpp"

#include <cassert>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

// A window whose key has ended. Its queue pair frees it, unless the device refuses.
struct idle_window {
  std::shared_ptr<memory_window_impl> window;
  void close(error_code& ec) { ec = window->close(); }
};

} // namespace

offer_key::offer_key(link_impl& link) noexcept
    : link_(link),
      bind_(link, *this,
            [](link_transfer& t, operation_list& done) {
              static_cast<request&>(t).key.on_bound(done);
            }),
      invalidation_(link, *this, [](link_transfer& t, operation_list& done) {
        static_cast<request&>(t).key.on_invalidated(t.ec, done);
      }) {
  bind_.wr.opcode = IBV_WR_BIND_MW;
  invalidation_.wr.opcode = IBV_WR_LOCAL_INV;
}

offer_key::~offer_key() {
  if (window_ && window_->close())
    withhold_key(idle_window{std::move(window_)});
}

error_code offer_key::open(offered& user, const const_buffer& memory) {
  assert(!is_open());
  void* const data = const_cast<void*>(memory.data());
  const std::size_t bytes = memory.size();
  error_code ec;
  user_ = &user;
  ending_ = false;
  const memory_region* const region = bytes <= max_window_bytes && !memory.is_device_only()
                                          ? find_bindable(link_.pool(), data, bytes)
                                          : nullptr;
  if (region == nullptr || !has_window()) {
    key_ = grant_key(
        register_view(link_.pool().get_protection_domain(), memory, access::remote_read, ec));
    return ec;
  }
  key_ = grant_key(window_, *region, data, bytes, access::remote_read);
  bind_.wr.bind_mw = {window_->native_handle(), 0, key_.binding()};
  // The completion of a later request, such as the offer's frame or the invalidation, reports it.
  bind_.wr.send_flags = 0;
  link_.gather(); // the bind and the offer's frame
  ec = link_.queue_pair()->prepare_bind(*window_, bind_.wr);
  if (!ec && !link_.post(bind_))
    ec = bind_.ec;
  binding_ = !ec;
  if (ec)
    key_.invalidated(); // it was never bound
  return ec;
}

// The device may have no more windows.
bool offer_key::has_window() {
  error_code ec;
  if (!window_)
    window_ = make_window(link_.pool().get_protection_domain(), ec);
  return window_ != nullptr;
}

// A window must not be freed before its bind has ended: the provider still uses it. If the link
// fails, so does the bind.
bool offer_key::invalidate() {
  if (!key_.window())
    return false;
  invalidation_.wr.invalidate_rkey = window_->rkey();
  invalidating_ = !link_.failing() && link_.post(invalidation_);
  ending_ = invalidating_ || binding_;
  return ending_;
}

void offer_key::drop(const registered_buffer& memory) noexcept {
  user_ = nullptr;
  memory_ = memory;
}

// The device executes later requests after a bind, so an offer does not wait for it.
void offer_key::on_bound(operation_list& done) {
  binding_ = false;
  if (ending_ && !invalidating_)
    link_.offer_ended(*this, done);
}

// After an error the queue pair, in the error state, gives the peer no access. The window is still
// bound, and its region cannot be deregistered before the key is closed. The error of a request
// that waited to be posted may precede that of its bind.
void offer_key::on_invalidated(const error_code& ec, operation_list& done) {
  invalidating_ = false;
  if (!ec)
    key_.invalidated();
  if (!binding_)
    link_.offer_ended(*this, done);
}

// --- The link --------------------------------------------------------------------------------

error_code link_impl::open_offer(offered& o, const const_buffer& memory) noexcept {
  assert(is_locked() && o.key == nullptr);
  offer_key* key = nullptr;
  error_code ec;
  try {
    key = &offer_keys_.take(*this);
    ec = key->open(o, memory);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  if (!ec) {
    o.key = key;
    registrations_.add(key->is_registration() ? 1 : 0);
  } else if (key != nullptr && !failing()) {
    offer_keys_.give_back(*key);
  }
  return ec;
}

remote_buffer link_impl::remote_of(const offered& o) noexcept { return o.key->remote(); }

bool link_impl::begin_end(offered& o) {
  assert(is_locked());
  return o.key != nullptr && o.key->invalidate();
}

bool link_impl::is_ending(const offered& o) noexcept {
  return o.key != nullptr && o.key->is_ending();
}

void link_impl::offer_ended(offer_key& key, operation_list& done) {
  if (key.user() != nullptr)
    return session_.on_key_ended(*key.user(), done);
  buffer_access none;
  close(key, key.memory(), none);
  drop(key.memory());
}

bool link_impl::end_offer(offered& o, const registered_buffer& memory,
                          buffer_access& access) noexcept {
  assert(is_locked());
  offer_key* const key = std::exchange(o.key, nullptr);
  return key == nullptr || close(*key, memory, access);
}

void link_impl::drop_offer(offered& o, const registered_buffer& memory) {
  assert(is_locked());
  if (o.key == nullptr || !o.key->invalidate())
    return;
  o.key->drop(memory);
  o.key = nullptr;
}

// No work request of the key is outstanding.
bool link_impl::close(offer_key& key, const registered_buffer& memory,
                      buffer_access& access) noexcept {
  const bool ended = !key.is_open() || end_key(key.key(), memory, access);
  if (!failing())
    offer_keys_.give_back(key);
  return ended;
}

bool link_impl::end_key(grant_key& key, const registered_buffer& memory,
                        buffer_access& access) noexcept {
  error_code ec;
  const remote_buffer exposed = key.is_open() ? key.remote() : remote_buffer();
  key.close(ec);
  if (!ec)
    return true;
  kept_blocks viewed;
  if (memory.empty()) { // the caller's memory may belong to a pool, too
    const ibv_sge all{exposed.address, static_cast<std::uint32_t>(exposed.size), 0};
    memory_pool_impl::find_blocks({&all, 1}, viewed);
  }
  withhold_key(std::move(key), memory, std::move(access), std::move(viewed));
  fail(ec);
  return false;
}

} // namespace asio_rdma::detail
