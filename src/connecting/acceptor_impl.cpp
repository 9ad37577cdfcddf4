// SPDX-License-Identifier: BSL-1.0
#include "connecting/acceptor_impl.hpp"

#include "core/device_files.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <iterator>
#include <new>
#include <utility>

namespace asio_rdma::detail {

acceptor_impl::acceptor_impl(cm_service& service, asio::any_io_executor executor)
    : service_(service), executor_(std::move(executor)) {}

acceptor_impl::~acceptor_impl() {
  if (id_ != nullptr)
    rdma_destroy_id(id_);
}

namespace {

// If either address is the wildcard address, the kernel reports the same error for a port in use as
// for an address of no interface (cma_check_port). Then the address is usable with another port.
// (An id binds to a loopback address without a device, too.)
bool is_listened_at(cm_service& service, const std::shared_ptr<cm_handler>& handler,
                    asio::ip::tcp::endpoint endpoint) {
  endpoint.port(0);
  error_code ec;
  rdma_cm_id* const other = service.make_id(handler, ec);
  if (other == nullptr)
    return false;
  const bool can_be_had = rdma_bind_addr(other, static_cast<sockaddr*>(endpoint.data())) == 0 &&
                          (other->verbs != nullptr || endpoint.address().is_unspecified());
  rdma_destroy_id(other);
  return can_be_had;
}

// Drops references to queue pairs whose contexts may be destroyed before the operation's handler
// is called. A context cannot be destroyed while a reference is dropped.
void drop_objects(operation_list& done) noexcept {
  for (operation& o : done) {
    auto& op = static_cast<accept_operation&>(o);
    cm_use home;
    if (op.home.gate)
      home.begin(op.home.gate);
    op.target.reset();
    op.qp.reset();
  }
}

} // namespace

error_code acceptor_impl::set(const acceptor_options& options) {
  assert(mutex_.held());
  backlog_ = static_cast<std::size_t>(std::max(options.backlog, 1));
  most_handshakes_ = options.handshakes;
  patience_ = options.patience;
  const bool valid = options.handshakes != 0 && patience_ >= patience_.zero();
  return valid ? error_code() : asio::error::invalid_argument;
}

// The removal of the device, of which another thread may read, waits until the id is no longer used
// here.
error_code acceptor_impl::open(asio::ip::tcp::endpoint endpoint, const acceptor_options& options) {
  const std::lock_guard lock(mutex_);
  if (const error_code ec = set(options))
    return ec;
  error_code ec;
  id_ = service_.make_id(shared_from_this(), ec);
  if (ec)
    return ec;
  int yes = 1;
  rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes));
  const bool bound = rdma_bind_addr(id_, static_cast<sockaddr*>(endpoint.data())) == 0;
  const int e = errno;
  if (!bound && e == EADDRNOTAVAIL && is_listened_at(service_, shared_from_this(), endpoint))
    return asio::error::address_in_use;
  const bool no_device = bound ? id_->verbs == nullptr : e == ENODEV || e == EADDRNOTAVAIL;
  if (endpoint.address().is_loopback() && no_device)
    return error::loopback_address;
  if (bound && endpoint.address().is_unspecified())
    if (const error_code unusable = unusable_error())
      return unusable;
  if (bound)
    return listen();
  if (e == EACCES) // a privileged port
    return asio::error::access_denied;
  // A device that the process cannot use may have the address.
  return e == ENODEV || e == EADDRNOTAVAIL ? cm_open_error(ENODEV, error::no_gid) : cm_error(e);
}

error_code acceptor_impl::listen() {
  assert(mutex_.held());
  // The kernel drops requests beyond its own backlog, and the peer retries seconds later. So the
  // kernel's backlog is as large as possible, and requests beyond `backlog` are rejected.
  if (rdma_listen(id_, 0) == 0)
    return {};
  const int e = errno;
  return e == EADDRNOTAVAIL ? error_code(asio::error::address_in_use) : cm_error(e);
}

// The id moves before it listens: librdmacm gives a request the channel of its listening id.
error_code acceptor_impl::adopt(rdma_cm_id* id, const acceptor_options& options) {
  if (id == nullptr)
    return asio::error::invalid_argument;
  const std::lock_guard lock(mutex_);
  if (const error_code ec = set(options))
    return ec;
  if (const error_code ec = service_.expect(shared_from_this()))
    return ec;
  return service_.take_id(id, *this, [&] {
    id_ = id;
    const error_code ec = listen();
    if (ec)
      id_ = nullptr;
    return ec;
  });
}

rdma_cm_id* acceptor_impl::native_handle() const {
  const std::lock_guard lock(mutex_);
  return id_;
}

asio::ip::tcp::endpoint acceptor_impl::local_endpoint() const {
  const std::lock_guard lock(mutex_);
  return id_ != nullptr ? endpoint_of(rdma_get_local_addr(id_)) : asio::ip::tcp::endpoint();
}

// Gives the request to the operation. A request of another protocol than the operation's connection
// is refused, and the operation keeps waiting.
acceptor_impl::served
acceptor_impl::serve(accept_operation& op,
                     const std::shared_ptr<cm_connection>& connection) noexcept {
  assert(mutex_.held());
  if (op.qp == nullptr) {
    op.request = connection;
    return served::given;
  }
  cm_use home;
  if (!home.begin(op.home.gate)) { // the queue pair's context has been destroyed
    op.ec = asio::error::bad_descriptor;
    return served::unfit;
  }
  op.ec = op.qp->check_attach();
  if (op.ec)
    return served::unfit;
  op.taken = true;
  const std::uint64_t id = op.id;
  std::shared_ptr<queue_pair_impl> qp = std::move(op.qp); // the connection keeps it
  try {
    if (id != 0) {
      std::erase_if(accepting_, [](const accepting& a) { return a.connection.expired(); });
      accepting_.reserve(accepting_.size() + 1);
    }
    const error_code ec = connection->accept(op, qp, op.home, op.options, true);
    if (!ec) {
      if (id != 0)
        accepting_.push_back({id, connection});
      return served::going_on;
    }
    if (ec == error::incompatible_peer) {
      op.qp = std::move(qp);
      last_incompatible_ = connection->remote_endpoint();
      last_reason_ = ec;
      return served::refused;
    }
    op.ec = ec;
  } catch (const std::bad_alloc&) {
    op.ec = asio::error::no_memory;
  }
  // A queue pair that was closed at that moment says nothing about the request.
  op.taken = !qp->check_attach();
  if (op.taken)
    connection->count_end(&acceptor_tallies::failed, op.ec);
  return op.taken ? served::failed : served::unfit;
}

error_code acceptor_impl::check_start(const accept_operation& op) const {
  assert(mutex_.held());
  const bool cancelled = op.cancels && op.cancels != cancels_;
  if (id_ == nullptr && (cancelled || closed_by_ == error::device_removed))
    return closed_by_;
  if (id_ == nullptr)
    return asio::error::bad_descriptor;
  if (cancelled)
    return asio::error::operation_aborted;
  if (op.qp == nullptr)
    return {};
  if (const error_code ec = cm_connection::check(op, *op.qp, op.options.data))
    return ec;
  if (const error_code ec = cm_connection::check_fit(id_->verbs, *op.qp, op.options.data))
    return ec;
  for (const operation_list* list : {&waiting_, &asked_operation_})
    for (const operation& other : *list)
      if (static_cast<const accept_operation&>(other).qp == op.qp)
        return asio::error::already_connected;
  return op.qp->check_attach();
}

bool acceptor_impl::start(accept_operation& op) {
  completion_service& operations = service_.operations(); // once started, this may be destroyed
  leftovers left;
  error_code home_error;
  if (op.qp != nullptr)
    op.home = cm_connection::home_of(*op.qp, home_error);
  {
    const std::lock_guard lock(mutex_);
    op.ec = check_start(op);
    if (!op.ec)
      op.ec = home_error;
    if (op.ec)
      return false;
    operations.operation_starting();
    waiting_.push_back(op);
    match(left);
  }
  settle(operations, left);
  return true;
}

// Allocates all memory before it takes the request.
bool acceptor_impl::on_request(const cm_event& event) {
  // The service's weak_ptr outlives the object by a while, and then keeps no memory of it.
  request_list request(1, std::shared_ptr<cm_connection>(new cm_connection(service_, executor_)));
  const auto connection = request.front();
  service_.remember(connection);
  connection->adopt(event, tallies_);
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    requests_.splice(requests_.end(), request);
    if (std::exchange(turn_, event.turn) != event.turn)
      in_turn_ = 0;
    match(left, connection.get());
    const bool waits = !requests_.empty() && requests_.back() == connection;
    if (waits && (id_ == nullptr || requests_.size() > backlog_)) {
      request.splice(request.end(), requests_, std::prev(requests_.end()));
      if (id_ != nullptr && !has_room()) {
        const auto other = request_to_reject(*connection);
        if (other != requests_.end()) {
          requests_.splice(requests_.end(), request);
          request.splice(request.end(), requests_, other);
        }
        request.front()->count_end(&acceptor_tallies::refused_backlog);
      } else if (id_ != nullptr) {
        requests_.splice(requests_.end(), request);
      }
      left.ended.splice(left.ended.end(), request);
    }
  }
  settle(service_.operations(), left);
  return true;
}

// Ends silent handshakes for requests that cannot be answered otherwise, unless ids have to be
// destroyed first, and looks again later. The context may have been busy since the time at which it
// was to look.
void acceptor_impl::make_way(leftovers& left, const ending_ids::crowded_sources& crowded) noexcept {
  assert(mutex_.held());
  if (requests_.empty() || id_ == nullptr || !asked_request_.empty() ||
      (tallies_->under_way.count() == 0 && waiting_.empty())) [[likely]]
    return;
  constexpr std::chrono::seconds newest_first(1);
  constexpr std::chrono::milliseconds pause(5), pause_for_ids(50);
  try {
    left.silent.reserve(left.silent.size() + requests_.size());
    const auto now = pending_handshakes::clock::now();
    if (now - look_at_ > 2 * pause)
      tallies_->under_way.allow(now - look_at_);
    look_at_ = at_no_time;
    auto next = at_no_time;
    const std::size_t answerable = count_answerable(crowded);
    for (std::size_t more = answerable; more != 0; --more) {
      auto overdue = tallies_->under_way.take_overdue(now, answerable, patience_);
      next = overdue.next;
      if (!overdue.which)
        break;
      newest_first_until_ = now + newest_first;
      left.silent.push_back(std::move(overdue.which));
    }
    // A handshake that ends does not report that, as the end may have locked anything.
    if (!waiting_.empty() && answerable != 0)
      next = std::min(next, now + pause);
    else if (answerable != requests_.size())
      next = std::min(next, now + pause_for_ids);
    if (next == at_no_time)
      return;
    if (!timer_)
      timer_ = std::make_unique<background_timer>(service_.operations().context());
    look_at_ = std::max(next, now + pause);
    timer_->set(look_at_, [weak = weak_from_this()] {
      if (const auto self = std::static_pointer_cast<acceptor_impl>(weak.lock()))
        self->look_again();
    });
  } catch (const std::bad_alloc&) { // the next request or accept looks again
  }
}

// The waiting requests that a further handshake could be begun for.
std::size_t
acceptor_impl::count_answerable(const ending_ids::crowded_sources& crowded) const noexcept {
  assert(mutex_.held());
  if (service_.ending()->pile_up())
    return 0;
  if (crowded.empty()) [[likely]]
    return requests_.size();
  return static_cast<std::size_t>(
      std::count_if(requests_.begin(), requests_.end(),
                    [&](const auto& r) { return !crowded.have(r->connector().address()); }));
}

void acceptor_impl::look_again() noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    if (id_ == nullptr)
      return;
    timer_->ran_out();
    match(left);
  }
  settle(service_.operations(), left);
}

void acceptor_impl::settle(completion_service& operations, leftovers& left) noexcept {
  settle_all(operations, left);
  do {
    put_off(operations, left);
    put_question(operations, left);
  } while (left.goes_on);
}

void acceptor_impl::settle_all(completion_service& operations, leftovers& left) noexcept {
  for (const auto& silent : std::exchange(left.silent, {}))
    silent->give_way();
  for (const auto& ended : std::exchange(left.ended, {}))
    ended->give_up(asio::error::operation_aborted);
  drop_objects(left.done);
  operations.complete(left.done);
}

// Asks a few requests in turn each time, because each costs a system call.
bool acceptor_impl::has_room() {
  assert(mutex_.held() && backlog_ != 0);
  if (requests_.size() < backlog_)
    return true;
  constexpr int at_a_time = 8;
  for (int left = at_a_time; left != 0; --left) {
    asked_ = (asked_ + 1) % requests_.size();
    const auto i = std::next(requests_.begin(), static_cast<std::ptrdiff_t>(asked_));
    if ((*i)->withdrawn()) {
      (*i)->count_end(&acceptor_tallies::aborted);
      requests_.erase(i);
      return true;
    }
  }
  return false;
}

acceptor_statistics acceptor_impl::statistics() const {
  acceptor_statistics result;
  {
    const std::lock_guard lock(mutex_);
    result.waiting = requests_.size() + asked_request_.size();
    result.pending_accepts = waiting_.size() + asked_operation_.size();
    result.last_incompatible = last_incompatible_;
    result.last_reason = last_reason_;
  }
  result.accepted = tallies_->accepted;
  result.refused_backlog = tallies_->refused_backlog;
  result.refused_incompatible = tallies_->refused_incompatible;
  result.refused_admission = tallies_->refused_admission;
  result.rejected = tallies_->rejected;
  result.aborted = tallies_->aborted;
  result.failed = tallies_->failed;
  result.gave_way = tallies_->gave_way;
  result.handshakes = tallies_->under_way.count();
  result.requests = tallies_->requests;
  return result;
}

std::uint64_t acceptor_impl::cancels() const {
  const std::lock_guard lock(mutex_);
  return cancels_;
}

bool acceptor_impl::is_of_connector(const error_code& ec) const {
  if (ec == asio::error::connection_aborted || ec == asio::error::connection_reset ||
      ec == asio::error::broken_pipe || ec == asio::error::timed_out || ec == error::unreachable ||
      ec == error::incompatible_peer || ec == error::protocol_violation ||
      ec == error::queue_pair_fatal || ec == error::peer_access_refused ||
      ec.category() == completion_category())
    return true;
  if (ec != error::wrong_device)
    return false;
  // If the acceptor listens on all devices, the connector has chosen the wrong one. If it listens
  // on a single device, the local object is of no use.
  const std::lock_guard lock(mutex_);
  return id_ != nullptr && id_->verbs == nullptr;
}

// A listening id has no events but requests and the removal of its device.
void acceptor_impl::on_cm_event(const cm_event& event) {
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL)
    close(error::device_removed);
}

void acceptor_impl::cancel() { cancel(asio::error::operation_aborted); }

void acceptor_impl::cancel(const error_code& why) {
  operation_list done;
  {
    const std::lock_guard lock(mutex_);
    ++cancels_;
    take_back_question();
    for (operation& op : waiting_)
      op.fail(why);
    done.swap(waiting_);
  }
  drop_objects(done);
  if (!done.empty()) // else the context may be destroyed
    service_.operations().complete(done);
}

void acceptor_impl::cancel(std::uint64_t operation_id, asio::cancellation_type_t type) {
  leftovers left;
  operation_list& done = left.done;
  std::shared_ptr<cm_connection> connection;
  {
    const std::lock_guard lock(mutex_);
    const bool asked = !asked_operation_.empty() && asked_operation_.front().id == operation_id;
    if (asked)
      take_back_question();
    const auto i = std::find_if(waiting_.begin(), waiting_.end(),
                                [operation_id](const auto& op) { return op.id == operation_id; });
    if (i != waiting_.end()) {
      i->fail(asio::error::operation_aborted);
      done.splice(done.end(), waiting_, i);
    }
    for (const accepting& a : accepting_)
      if (a.operation_id == operation_id)
        connection = a.connection.lock();
    if (asked)
      match(left); // the next operation takes the request
  }
  if (connection)
    connection->cancel(operation_id, type);
  if (!done.empty()) // else the context may be destroyed
    settle(service_.operations(), left);
}

void acceptor_impl::close() { close(asio::error::operation_aborted); }

void acceptor_impl::close(const error_code& why) {
  std::unique_ptr<background_timer> timer; // its destructor uses the context
  rdma_cm_id* id = nullptr;
  request_list requests;
  {
    const std::lock_guard lock(mutex_);
    id = std::exchange(id_, nullptr);
    timer = std::move(timer_);
    take_back_question();
    requests.swap(requests_);
    ++cancels_;
    if (id != nullptr)
      closed_by_ = why;
  }
  cancel(why);
  for (const auto& r : requests)
    r->give_up(asio::error::operation_aborted);
  if (id != nullptr)
    rdma_destroy_id(id);
}

} // namespace asio_rdma::detail
