// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/cm_service.hpp>

#include "descriptor_watch.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace asio_rdma::detail {

asio::execution_context::id cm_service::id;

struct cm_service::channel {
  struct reader final : scheduled_operation {
    explicit reader(channel& c) noexcept : scheduled_operation(&reader::execute), owner(c) {}

    static void execute(void* context, scheduled_operation* base, const error_code&, std::size_t) {
      channel& owner = static_cast<reader*>(base)->owner;
      owner.queued.store(false);
      if (context != nullptr)
        owner.read();
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
      context_scheduler.post_immediate_completion(&read_op, true);
  }

  // Each event is acknowledged before its handler hears of it, because the handler may destroy the
  // id, which waits for that (rdma_destroy_id(3)). Until then the owner of the id cannot be gone.
  void read() {
    const std::lock_guard lock(mutex);
    rdma_cm_event* raw = nullptr;
    while (next(raw)) {
      cm_event event;
      event.type = raw->event;
      event.status = raw->status;
      event.id = raw->id;
      event.responder_resources = raw->param.conn.responder_resources;
      event.initiator_depth = raw->param.conn.initiator_depth;
      if (raw->param.conn.private_data != nullptr) {
        const auto* data = static_cast<const std::byte*>(raw->param.conn.private_data);
        event.data.assign(data, data + raw->param.conn.private_data_len);
      }
      auto* const owner = static_cast<cm_handler*>(raw->id->context);
      std::shared_ptr<cm_handler> handler = owner->weak_from_this().lock();
      if (raw->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        const auto request = handler ? handler->adopt_request(raw->id) : nullptr;
        rdma_ack_cm_event(raw);
        if (request == nullptr)
          rdma_destroy_id(event.id);
        else
          request->on_cm_event(event);
        continue;
      }
      rdma_ack_cm_event(raw);
      if (handler)
        handler->on_cm_event(event);
    }
  }

  bool next(rdma_cm_event*& event) {
    const std::lock_guard lock(addresses);
    return rdma_get_cm_event(events, &event) == 0;
  }

  scheduler& context_scheduler;
  rdma_event_channel* events;
  reader read_op;
  std::atomic<bool> queued{false};
  std::mutex mutex;
  std::mutex addresses; // what librdmacm writes to ids
  descriptor_watch<channel, &channel::on_readable> watch;
};

cm_service::cm_service(asio::execution_context& context)
    : asio::execution_context::service(context), operations_(completion_service::of(context)) {}

cm_service::~cm_service() = default;

cm_service& cm_service::of(asio::execution_context& context) {
  return asio::use_service<cm_service>(context);
}

bool cm_service::open(error_code& ec) {
  if (channel_)
    return true;
  rdma_event_channel* events = rdma_create_event_channel();
  if (events == nullptr) {
    ec = cm_error(errno);
    return false;
  }
  fcntl(events->fd, F_SETFL, fcntl(events->fd, F_GETFL) | O_NONBLOCK);
  auto c = std::make_unique<channel>(context(), events);
  if (const int e = c->watch.start(context(), events->fd)) {
    ec = system_error_code(e);
    return false;
  }
  channel_ = std::move(c);
  return true;
}

void cm_service::read_events() {
  channel* c = nullptr;
  {
    const std::lock_guard lock(mutex_);
    c = channel_.get();
  }
  if (c != nullptr)
    c->read();
}

int cm_service::descriptor() const {
  const std::lock_guard lock(mutex_);
  return channel_ ? channel_->events->fd : -1;
}

rdma_cm_id* cm_service::make_id(const std::shared_ptr<cm_handler>& handler, error_code& ec) {
  const std::lock_guard lock(mutex_);
  if (!open(ec))
    return nullptr;
  rdma_cm_id* result = nullptr;
  if (rdma_create_id(channel_->events, &result, handler.get(), RDMA_PS_TCP) != 0) {
    ec = cm_error(errno);
    return nullptr;
  }
  add(handler);
  return result;
}

int cm_service::resolve_address(rdma_cm_id* resolved, sockaddr* from, sockaddr* to, int timeout) {
  const std::lock_guard lock(channel_->addresses);
  return rdma_resolve_addr(resolved, from, to, timeout);
}

error_code cm_service::adopt_id(const std::shared_ptr<cm_handler>& handler, rdma_cm_id* moved) {
  {
    const std::lock_guard lock(mutex_);
    error_code ec;
    if (!open(ec))
      return ec;
    add(handler);
  }
  return rdma_migrate_id(moved, channel_->events) == 0 ? error_code() : cm_error(errno);
}

void cm_service::remember(const std::shared_ptr<cm_handler>& handler) {
  const std::lock_guard lock(mutex_);
  add(handler);
}

// Those that are gone are taken out when as many have been added as were left the last time.
void cm_service::add(const std::shared_ptr<cm_handler>& handler) {
  if (handlers_.size() >= clean_at_) {
    std::erase_if(handlers_, [](const auto& w) { return w.expired(); });
    clean_at_ = std::max<std::size_t>(2 * handlers_.size(), 64);
  }
  handlers_.push_back(handler);
}

void cm_service::linger(std::shared_ptr<cm_handler> handler) {
  const std::lock_guard lock(mutex_);
  lingering_.push_back(std::move(handler));
}

void cm_service::unlinger(const cm_handler& handler) {
  std::vector<std::shared_ptr<cm_handler>> gone; // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    for (auto& kept : lingering_)
      if (kept.get() == &handler)
        gone.push_back(std::move(kept));
    std::erase(lingering_, nullptr);
  }
}

void cm_service::shutdown() {
  // On connections, which end here.
  operations_.do_last_work(descriptor(), [this] { read_events(); });
  std::vector<std::weak_ptr<cm_handler>> handlers;
  std::vector<std::shared_ptr<cm_handler>> lingering;
  {
    const std::lock_guard lock(mutex_);
    handlers.swap(handlers_);
  }
  if (channel_)
    channel_->watch.stop();
  for (const auto& weak : handlers)
    if (const auto h = weak.lock())
      h->close();
  {
    const std::lock_guard lock(mutex_);
    lingering.swap(lingering_);
  }
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

error_code cm_error(int value) {
  switch (value) {
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
