// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/acceptor_impl.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace asio_rdma::detail {

acceptor_impl::acceptor_impl(cm_service& service, asio::any_io_executor executor)
    : service_(service), executor_(std::move(executor)) {}

acceptor_impl::~acceptor_impl() {
  if (id_ != nullptr)
    rdma_destroy_id(id_);
}

namespace {

// The kernel says the same of a port that is taken as of an address that nobody has, if this
// address or the other one is that of all (cma_check_port). The address can be had with another
// port, then.
bool is_listened_at(rdma_cm_id& id, asio::ip::tcp::endpoint endpoint) {
  endpoint.port(0);
  rdma_cm_id* other = nullptr;
  if (rdma_create_id(id.channel, &other, nullptr, RDMA_PS_TCP) != 0)
    return false;
  const bool can_be_had = rdma_bind_addr(other, static_cast<sockaddr*>(endpoint.data())) == 0;
  rdma_destroy_id(other);
  return can_be_had;
}

} // namespace

error_code acceptor_impl::open(asio::ip::tcp::endpoint endpoint, int backlog) {
  error_code ec;
  id_ = service_.make_id(shared_from_this(), ec);
  if (ec)
    return ec;
  int yes = 1;
  rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes));
  const bool bound = rdma_bind_addr(id_, static_cast<sockaddr*>(endpoint.data())) == 0;
  const int e = errno;
  if (endpoint.address().is_loopback() && (!bound || id_->verbs == nullptr))
    return error::loopback_address;
  if (bound)
    return listen(backlog);
  if (e == EACCES) // a port of the system's
    return asio::error::access_denied;
  if (e == EADDRNOTAVAIL && is_listened_at(*id_, endpoint))
    return asio::error::address_in_use;
  return e == ENODEV || e == EADDRNOTAVAIL ? error_code(error::no_gid) : cm_error(e);
}

error_code acceptor_impl::listen(int backlog) {
  backlog_ = static_cast<std::size_t>(std::max(backlog, 1));
  // What exceeds the kernel's own backlog is dropped there, and asked for again seconds later. So
  // that one is as large as may be, and what exceeds this one is rejected.
  if (rdma_listen(id_, 0) == 0)
    return {};
  const int e = errno;
  return e == EADDRNOTAVAIL ? error_code(asio::error::address_in_use) : cm_error(e);
}

// It moves before it listens: librdmacm gives a request the channel that its listening id had.
error_code acceptor_impl::adopt(rdma_cm_id* id, int backlog) {
  if (id == nullptr)
    return asio::error::invalid_argument;
  void* const context = std::exchange(id->context, static_cast<cm_handler*>(this));
  error_code ec = service_.adopt_id(shared_from_this(), id);
  if (!ec) {
    id_ = id;
    ec = listen(backlog);
    if (ec) {
      id_ = nullptr;
      rdma_migrate_id(id, nullptr);
    }
  }
  if (ec)
    id->context = context;
  return ec;
}

rdma_cm_id* acceptor_impl::native_handle() const {
  const std::lock_guard lock(mutex_);
  return id_;
}

asio::ip::tcp::endpoint acceptor_impl::local_endpoint() const {
  const std::lock_guard lock(mutex_);
  return id_ != nullptr ? endpoint_of(rdma_get_local_addr(id_)) : asio::ip::tcp::endpoint();
}

// Gives the request to the operation. One that speaks another protocol than the operation's
// connection is refused, and the operation waits on.
acceptor_impl::served acceptor_impl::serve(accept_operation& op,
                                           const std::shared_ptr<cm_connection>& connection) {
  if (op.qp == nullptr) {
    op.info = connection->info();
    op.request = connection;
    return served::done;
  }
  const std::uint64_t id = op.id;
  if (const error_code ec = connection->accept(op, op.qp, op.options, true)) {
    connection->close();
    if (ec == error::incompatible_peer)
      return served::refused;
    op.ec = ec;
    return served::done;
  }
  if (id != 0) {
    std::erase_if(accepting_, [](const auto& w) { return w.expired(); });
    accepting_.push_back(connection);
  }
  return served::going_on;
}

bool acceptor_impl::start(accept_operation& op) {
  completion_service& operations = service_.operations(); // the acceptor may go once it has started
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    const bool cancelled = op.cancels && op.cancels != cancels_;
    if (id_ == nullptr && (cancelled || closed_by_ == error::device_fatal))
      op.ec = closed_by_;
    else if (id_ == nullptr)
      op.ec = asio::error::bad_descriptor;
    else if (cancelled)
      op.ec = asio::error::operation_aborted;
    else if (op.qp != nullptr)
      op.ec = op.qp->check_attach();
    if (op.ec)
      return false;
    operations.operation_starting();
    auto how = served::refused;
    while (how == served::refused && !requests_.empty()) {
      const auto connection = std::move(requests_.front());
      requests_.pop_front();
      if (!connection->withdrawn())
        how = serve(op, connection);
    }
    if (how == served::refused)
      waiting_.push_back(op);
    else if (how == served::done)
      done.push_back(op);
  }
  operations.complete(done);
  return true;
}

// The request's own events go to the connection from now on; the request itself comes back here by
// way of it.
class acceptor_impl::request final : public cm_handler {
public:
  request(std::shared_ptr<acceptor_impl> acceptor, std::shared_ptr<cm_connection> connection)
      : acceptor_(std::move(acceptor)), connection_(std::move(connection)) {}

  void on_cm_event(const cm_event& event) override {
    connection_->on_cm_event(event);
    operation_list done;
    {
      const std::lock_guard lock(acceptor_->mutex_);
      if (acceptor_->id_ == nullptr || !acceptor_->has_room()) {
        // Closed meanwhile, or more than the backlog: refused when the connection goes.
      } else if (acceptor_->waiting_.empty()) {
        acceptor_->requests_.push_back(connection_);
        return;
      } else {
        auto& op = static_cast<accept_operation&>(acceptor_->waiting_.front());
        acceptor_->waiting_.pop_front();
        const served how = acceptor_->serve(op, connection_);
        if (how == served::going_on)
          return;
        if (how == served::done)
          done.push_back(op);
        else
          acceptor_->waiting_.push_front(op);
      }
    }
    if (done.empty())
      connection_->close();
    else
      acceptor_->service_.operations().complete(done);
  }
  void close() override {}

private:
  std::shared_ptr<acceptor_impl> acceptor_;
  std::shared_ptr<cm_connection> connection_;
};

bool acceptor_impl::has_room() {
  if (requests_.size() < backlog_)
    return true;
  const auto gone = std::find_if(requests_.begin(), requests_.end(),
                                 [](const auto& r) { return r->withdrawn(); });
  if (gone == requests_.end())
    return false;
  requests_.erase(gone);
  return true;
}

std::shared_ptr<cm_handler> acceptor_impl::adopt_request(rdma_cm_id* id) {
  auto connection = std::make_shared<cm_connection>(service_, executor_);
  connection->adopt(id);
  service_.remember(connection);
  return std::make_shared<request>(std::static_pointer_cast<acceptor_impl>(shared_from_this()),
                                   std::move(connection));
}

std::uint64_t acceptor_impl::cancels() const {
  const std::lock_guard lock(mutex_);
  return cancels_;
}

bool acceptor_impl::is_of_connector(const error_code& ec) const {
  if (ec == asio::error::connection_aborted || ec == asio::error::connection_reset ||
      ec == asio::error::broken_pipe || ec == asio::error::timed_out || ec == error::unreachable ||
      ec == error::incompatible_peer || ec == error::protocol_violation ||
      ec == error::queue_pair_fatal || ec.category() == completion_category())
    return true;
  if (ec != error::wrong_device)
    return false;
  // Of all devices the connector has chosen one; of a single one the object can be of no use.
  const std::lock_guard lock(mutex_);
  return id_ != nullptr && id_->verbs == nullptr;
}

// A listening id has no events but requests, unless its device goes away.
void acceptor_impl::on_cm_event(const cm_event& event) {
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL)
    close(error::device_fatal);
}

void acceptor_impl::cancel() { cancel(asio::error::operation_aborted); }

void acceptor_impl::cancel(const error_code& why) {
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    ++cancels_;
    for (operation& op : waiting_)
      op.fail(why);
    done.swap(waiting_);
  }
  service_.operations().complete(done);
}

void acceptor_impl::cancel(std::uint64_t operation_id, asio::cancellation_type_t) {
  operation_list done;
  std::vector<std::weak_ptr<cm_connection>> accepting;
  {
    const std::lock_guard lock(mutex_);
    const auto i = std::find_if(waiting_.begin(), waiting_.end(),
                                [operation_id](const auto& op) { return op.id == operation_id; });
    if (i != waiting_.end()) {
      i->fail(asio::error::operation_aborted);
      done.splice(done.end(), waiting_, i);
    } else {
      accepting = accepting_;
    }
  }
  for (const auto& weak : accepting)
    if (const auto connection = weak.lock())
      connection->cancel(operation_id);
  service_.operations().complete(done);
}

void acceptor_impl::close() { close(asio::error::operation_aborted); }

void acceptor_impl::close(const error_code& why) {
  rdma_cm_id* id = nullptr;
  std::deque<std::shared_ptr<cm_connection>> requests;
  {
    const std::lock_guard lock(mutex_);
    id = std::exchange(id_, nullptr);
    requests.swap(requests_);
    ++cancels_;
    if (id != nullptr)
      closed_by_ = why;
  }
  cancel(why);
  for (const auto& r : requests)
    r->close();
  if (id != nullptr)
    rdma_destroy_id(id);
}

} // namespace asio_rdma::detail
