// SPDX-License-Identifier: BSL-1.0
#include "connecting/cm_service.hpp"

#include "connecting/cm_device.hpp"
#include "core/descriptor_watch.hpp"
#include "core/device_files.hpp"
#include "verbs/device_impl.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <poll.h>
#include <utility>

namespace asio_rdma::detail {
namespace {

// The interface of the connection's local GID, 0 if unknown.
std::uint32_t interface_of(const rdma_cm_id& id) noexcept {
  ibv_port_attr port{};
  if (id.verbs == nullptr || is_iwarp(id.verbs) ||
      ibv_query_port(id.verbs, id.port_num, &port) != 0)
    return 0;
  const auto entry = find_gid(id.verbs, id.port_num, port, id.route.addr.addr.ibaddr.sgid,
                              [](const ibv_gid_entry&) { return true; });
  return entry ? entry->ndev_ifindex : 0;
}

// siw's rdma_connect(3) blocks for two minutes if the peer does not answer. A program that asks one
// dead peer after the other, for 10 s each (the default), has 13 such calls at a time.
constexpr std::size_t most_calls = 32;

struct destroy_channel {
  void operator()(rdma_event_channel* c) const noexcept { rdma_destroy_event_channel(c); }
};

} // namespace

asio::execution_context::id cm_service::id;

struct cm_service::channel {
  struct reader final : scheduled_operation {
    explicit reader(channel& c) noexcept : scheduled_operation(&reader::execute), owner(c) {}

    static void execute(void* context, scheduled_operation* base, const error_code&, std::size_t) {
      channel& owner = static_cast<reader*>(base)->owner;
      owner.queued.store(false);
      if (context != nullptr && owner.read())
        owner.on_readable();
    }

    channel& owner;
  };

  channel(asio::execution_context& c, rdma_event_channel* e)
      : context_scheduler(asio::use_service<scheduler>(c)),
        events(e),
        read_op(*this),
        watch(*this) {}
  channel(const channel&) = delete;
  ~channel() {
    watch.stop();
    rdma_destroy_event_channel(events);
  }

  void on_readable() {
    if (!queued.exchange(true))
      context_scheduler.post_immediate_completion(&read_op, false);
  }

  // Reads some events, so that other work of the context gets its turn; returns true if there may
  // be more. Each event is acknowledged before its handler is called, because the handler may
  // destroy the id, which waits for acknowledgement (rdma_destroy_id(3)). Until the acknowledgement
  // the owner of the id exists.
  bool read() {
    constexpr int at_a_time = 16;
    const std::lock_guard lock(mutex);
    ++turn;
    while (const auto call = take_returned())
      static_cast<cm_call&>(*call).on_return(call);
    for (int left = at_a_time; left != 0; --left) {
      rdma_cm_event* raw = nullptr;
      if (const int e = next(raw))
        return e == ENOMEM || e == EINTR; // the event stays in the kernel
      cm_event event;
      event.type = raw->event;
      event.status = raw->status;
      event.id = raw->id;
      event.turn = turn;
      event.responder_resources = raw->param.conn.responder_resources;
      event.initiator_depth = raw->param.conn.initiator_depth;
      event.data.assign(raw->param.conn.private_data, raw->param.conn.private_data_len);
      auto* const owner = static_cast<cm_handler*>(raw->id->context);
      std::shared_ptr<cm_handler> handler;
      if (owner != nullptr) { // null for an id that could not be given back
        handler = owner->weak_from_this().lock();
        event.ids_made = owner->ids_made;
      }
      rdma_ack_cm_event(raw);
      if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST)
        give_request(handler, event);
      else if (handler)
        handler->on_cm_event(event);
    }
    return true;
  }

  static void give_request(const std::shared_ptr<cm_handler>& handler, const cm_event& event) {
    bool taken = false;
    try {
      taken = handler && handler->on_request(event);
    } catch (const std::bad_alloc&) { // rejected, as with a full backlog
    }
    if (!taken)
      rdma_destroy_id(event.id);
  }

  std::shared_ptr<background_call> take_returned() noexcept {
    const std::lock_guard lock(returning);
    return returned.pop();
  }

  // Returns errno. librdmacm reports its own failures by -1 and errno, the kernel's by the error
  // number.
  int next(rdma_cm_event*& event) {
    const std::lock_guard lock(addresses);
    errno = 0;
    if (rdma_get_cm_event(events, &event) != 0)
      return errno != 0 ? errno : EIO;
    if (event->status == -1 && errno != 0)
      event->status = -errno;
    return 0;
  }

  scheduler& context_scheduler;
  rdma_event_channel* events;
  reader read_op;
  std::atomic<bool> queued{false};
  std::mutex mutex;
  std::uint64_t turn = 0;
  std::mutex addresses; // guards the addresses that librdmacm writes to ids
  std::mutex returning; // guards the calls that have returned
  call_list returned;
  descriptor_watch<channel, &channel::on_readable> watch;
};

cm_service::cm_service(asio::execution_context& context)
    : asio::execution_context::service(context),
      operations_(completion_service::of(context)),
      calls_(most_calls),
      ends_(most_ends_at_a_time, most_ends_of_source_at_a_time) {}

cm_service::~cm_service() = default;

cm_service& cm_service::of(asio::execution_context& context) {
  return asio::use_service<cm_service>(context);
}

bool cm_service::open(error_code& ec) {
  assert(mutex_.held());
  if (stopped_) {
    ec = asio::error::operation_aborted;
    return false;
  }
  if (channel_)
    return true;
  rdma_event_channel* events = rdma_create_event_channel();
  if (events == nullptr) {
    const int e = errno;
    ec = cm_open_error(e, cm_error(e));
    return false;
  }
  fcntl(events->fd, F_SETFL, fcntl(events->fd, F_GETFL) | O_NONBLOCK);
  std::unique_ptr<channel> c;
  try {
    c = std::make_unique<channel>(context(), events);
  } catch (...) {
    rdma_destroy_event_channel(events);
    throw;
  }
  if (const int e = c->watch.start(context(), events->fd)) {
    ec = system_error_code(e);
    return false;
  }
  channel_ = std::move(c);
  return true;
}

cm_service::channel* cm_service::opened() const {
  const std::lock_guard lock(mutex_);
  return channel_.get();
}

void cm_service::read_events() {
  if (channel* const c = opened())
    if (c->read())
      c->on_readable();
}

int cm_service::descriptor() const {
  const std::lock_guard lock(mutex_);
  return channel_ ? channel_->events->fd : -1;
}

rdma_cm_id* cm_service::make_id(const std::shared_ptr<cm_handler>& handler, error_code& ec) {
  const std::lock_guard lock(mutex_);
  if (!open(ec))
    return nullptr;
  add(handler);
  rdma_cm_id* result = nullptr;
  if (rdma_create_id(channel_->events, &result, handler.get(), RDMA_PS_TCP) != 0) {
    ec = cm_error(errno);
    return nullptr;
  }
  // Counted before the id has events, and after an earlier id of the same address was destroyed.
  ++handler->ids_made;
  return result;
}

int cm_service::resolve_address(rdma_cm_id* resolved, sockaddr* from, sockaddr* to, int timeout) {
  assert(channel_ != nullptr);
  const std::lock_guard lock(channel_->addresses);
  return rdma_resolve_addr(resolved, from, to, timeout);
}

error_code cm_service::prepare() {
  const std::lock_guard lock(mutex_);
  error_code ec;
  open(ec);
  return ec;
}

error_code cm_service::expect(const std::shared_ptr<cm_handler>& handler) {
  const std::lock_guard lock(mutex_);
  error_code ec;
  if (open(ec))
    add(handler);
  return ec;
}

error_code cm_service::adopt_id(rdma_cm_id* moved) {
  channel* const c = opened();
  assert(c != nullptr);
  if (rdma_migrate_id(moved, c->events) != 0)
    return cm_error(errno);
  // The kernel moves pending events without waking a reader of the new channel.
  pollfd waiting{c->events->fd, POLLIN, 0};
  if (::poll(&waiting, 1, 0) != 0)
    c->on_readable();
  return {};
}

// If no descriptor is left for a channel, the way back needs the event channel made here.
error_code cm_service::take_id(rdma_cm_id* taken, cm_handler& owner,
                               const std::function<error_code()>& use) {
  std::unique_ptr<rdma_event_channel, destroy_channel> back(rdma_create_event_channel());
  if (!back)
    return cm_error(errno);
  void* const context = std::exchange(taken->context, &owner);
  error_code ec = adopt_id(taken);
  if (!ec) {
    ec = use();
    if (ec && rdma_migrate_id(taken, nullptr) != 0) {
      if (rdma_migrate_id(taken, back.get()) != 0) {
        taken->context = nullptr; // it stays on this channel, whose reader ignores it
        return ec;
      }
      static_cast<void>(back.release());
    }
  }
  if (ec)
    taken->context = context;
  return ec;
}

std::unique_lock<std::mutex> cm_service::hold_events() {
  channel* const c = opened();
  assert(c != nullptr);
  return std::unique_lock(c->mutex);
}

void cm_service::remember(const std::shared_ptr<cm_handler>& handler) {
  const std::lock_guard lock(mutex_);
  add(handler);
}

std::vector<std::shared_ptr<cm_handler>> cm_service::handlers() const {
  std::vector<std::shared_ptr<cm_handler>> result;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : handlers_)
    if (auto h = weak.lock())
      result.push_back(std::move(h));
  return result;
}

bool cm_service::has_background_calls() const {
  assert(channel_ != nullptr);
  return may_be_queued_by_others(channel_->context_scheduler);
}

// The last reference to an end destroys its id, if no thread can do so.
void cm_service::end_ids(call_list& ids) noexcept {
  while (auto end = ids.pop()) {
    if (!has_background_calls())
      continue;
    try {
      static_cast<void>(ends_.start(std::move(end)));
    } catch (const std::bad_alloc&) { // of the first thread
    }
  }
}

void cm_service::give_back(std::shared_ptr<cm_call> call) noexcept {
  channel* const c = opened();
  assert(c != nullptr);
  {
    const std::lock_guard lock(c->returning);
    c->returned.push(std::move(call));
  }
  c->on_readable();
}

void cm_service::keep(std::shared_ptr<void> objects) noexcept {
  const std::lock_guard lock(mutex_);
  assert(kept_.size() != kept_.capacity());
  kept_.push_back(std::move(objects));
}

// Removes expired handlers whenever the number of handlers has doubled.
void cm_service::add(const std::shared_ptr<cm_handler>& handler) {
  assert(mutex_.held() && handler != nullptr);
  if (handlers_.size() >= clean_at_) {
    std::erase_if(handlers_, [](const auto& w) { return w.expired(); });
    clean_at_ = std::max<std::size_t>(2 * handlers_.size(), 64);
  }
  handlers_.push_back(handler);
  kept_.reserve(handlers_.capacity());
}

void cm_service::shutdown() {
  // Last work on connections, which end here.
  operations_.do_last_work(descriptor(), [this] { read_events(); });
  std::vector<std::weak_ptr<cm_handler>> handlers;
  {
    const std::lock_guard lock(mutex_);
    handlers.swap(handlers_);
    stopped_ = true;
  }
  if (channel_)
    channel_->watch.stop();
  const auto close_all = [&] {
    for (const auto& weak : handlers)
      if (const auto h = weak.lock())
        h->close(*this);
  };
  close_all();
  calls_.stop();
  while (channel_ && channel_->take_returned()) {
  }
  close_all(); // destroys the ids that the calls used
  gate_->close();
  ends_.finish(most_ends_at_shutdown);
}

bool cm_gate::enter() noexcept {
  const std::lock_guard lock(mutex_);
  if (!closed_)
    ++users_;
  return !closed_;
}

void cm_gate::leave() noexcept {
  const std::lock_guard lock(mutex_);
  assert(users_ != 0);
  if (--users_ == 0)
    empty_.notify_all(); // under the lock, as the last waiting thread may destroy the gate
}

void cm_gate::close() noexcept {
  std::unique_lock lock(mutex_);
  closed_ = true;
  empty_.wait(lock, [this] { return users_ == 0; });
}

asio::ip::tcp::endpoint endpoint_of(const sockaddr* address) {
  asio::ip::tcp::endpoint result;
  if (address == nullptr)
    return result;
  const std::size_t size = address->sa_family == AF_INET    ? sizeof(sockaddr_in)
                           : address->sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                            : 0;
  if (size == 0)
    return result;
  std::memcpy(result.data(), address, size);
  result.resize(size);
  return result;
}

// A link-local address is reachable only with the interface of its link, which the kernel does not
// report for a request by RoCE.
asio::ip::tcp::endpoint scoped_endpoint(const rdma_cm_id& id, const sockaddr* address) noexcept {
  asio::ip::tcp::endpoint result = endpoint_of(address);
  if (!result.address().is_v6())
    return result;
  asio::ip::address_v6 a = result.address().to_v6();
  if (a.is_link_local() && a.scope_id() == 0) {
    a.scope_id(interface_of(id));
    result.address(a);
  }
  return result;
}

// ENXIO: the id's device was removed, and the kernel has destroyed its part of the id (ucma_get_ctx
// in drivers/infiniband/core/ucma.c).
error_code cm_error(int value) {
  switch (value) {
  case ENXIO:
    return error::device_removed;
  case ENODEV:
    return error::no_device;
  case EACCES:
  case EPERM:
    return error::device_permission;
  case ECONNREFUSED:
    return error::peer_not_listening;
  case EHOSTUNREACH:
  case ENETUNREACH:
    return error::unreachable;
  default:
    return system_error_code(value);
  }
}

} // namespace asio_rdma::detail
