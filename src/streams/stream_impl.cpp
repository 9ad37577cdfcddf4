// SPDX-License-Identifier: BSL-1.0
#include "streams/stream_impl.hpp"

#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "connecting/cm_service.hpp"

#include <algorithm>
#include <cassert>
#include <exception>
#include <new>
#include <utility>

namespace asio_rdma::detail {
namespace {

// The number of READs that are posted at a time beside the frames.
constexpr std::uint32_t reads = 9;

link_options link_options_of(const stream_options& o) {
  link_options result;
  result.receives = o.receives;
  result.receive_size = o.receive_size;
  result.sends = o.sends;
  result.keep_alive = o.keep_alive;
  result.queue_pair = o.queue_pair;
  result.queue_pair.send_depth = o.sends + reads;
  return result;
}

// The scatter/gather elements of a frame, without that of the header.
constexpr std::size_t most_lent = 3;
// Smaller writes are copied rather than offered: a copied write does not wait for the peer, and
// several share one offer.
constexpr std::uint64_t lent_from = std::uint64_t(1) << 17;

std::chrono::milliseconds limited(std::chrono::milliseconds linger) {
  return std::clamp<std::chrono::milliseconds>(linger, std::chrono::milliseconds(0),
                                               std::chrono::hours(24));
}

// If the timer fires so late, the context may have been blocked.
constexpr std::chrono::milliseconds late(100);

// The least time for a peer to report how much of a withdrawn offer it has read.
constexpr std::chrono::milliseconds least_for_answer(1000);

registered_buffer allocate(const memory_pool& pool, std::size_t bytes, error_code& ec) {
  try {
    return pool.allocate(bytes, ec);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
    return {};
  }
}

} // namespace

/// Waits for the goodbyes of a closed stream.
class stream_impl::closer final : public operation {
public:
  closer() noexcept : operation(&closer::run) {}

  std::shared_ptr<stream_impl> stream;

private:
  static void run(operation* base, disposal how) {
    const auto s = std::move(static_cast<closer*>(base)->stream);
    if (how != disposal::destroy)
      s->link_impl::close();
  }
};

/// Counts as work of the context while the stream waits for the peer with no other operation
/// outstanding.
class stream_impl::holder final : public operation {
public:
  enum class state { idle, holding, ending };

  holder() noexcept : operation(&holder::run) { internal = true; }

  state now = state::idle;
  std::shared_ptr<stream_impl> stream; ///< While it ends.

private:
  static void run(operation* base, disposal how) {
    auto& self = *static_cast<holder*>(base);
    const auto s = std::move(self.stream);
    turn t(*s);
    self.now = state::idle;
    if (how != disposal::destroy)
      t.advance();
  }
};

/// Copied bytes and the key by which the peer reads them.
struct stream_impl::block {
  registered_buffer memory;
  memory_region exposed;
};

/// A READ of offered bytes before the application asks for them.
struct stream_impl::chunk final : link_pull {
  explicit chunk(stream_impl& s) noexcept : link_pull(s, &chunk::on_done) {}
  // If `pull` could not start the READ, the protocol counts it as not begun.
  static void on_done(link_impl& link, link_pull& p) {
    if (!p.failure())
      static_cast<stream_impl&>(link).bytes_->pulled(*static_cast<chunk&>(p).of);
  }

  stream_chunk* of = nullptr;
  registered_buffer memory;
};

/// A READ into the reader's own memory.
struct stream_impl::direct_pull final : link_pull {
  explicit direct_pull(stream_impl& s) noexcept : link_pull(s, &direct_pull::on_done) {}
  static void on_done(link_impl& link, link_pull& p) {
    const auto& self = static_cast<direct_pull&>(p);
    static_cast<stream_impl&>(link).bytes_->pulled(*self.to, self.size - self.left());
  }

  stream_read* to = nullptr;
  std::uint64_t size = 0;
};

stream_impl::stream_impl(const asio::any_io_executor& ex, const memory_pool& pool,
                         const stream_options& o)
    : link_impl(asio::query(ex, asio::execution::context), pool, handshake::kind::stream,
                link_options_of(o)),
      stream_options_(o),
      usual_linger_(limited(o.linger)),
      linger_option_(false, 0),
      closer_(std::make_unique<closer>()),
      holder_(std::make_unique<holder>()) {
  stream_options_.linger = usual_linger_;
}

stream_impl::~stream_impl() = default;

error_code stream_impl::open(const std::shared_ptr<shared_receives_impl>& shared) {
  const error_code ec = link_impl::open(shared);
  stream_options_.receives = link_impl::options().receives;
  stream_options_.receive_size = link_impl::options().receive_size;
  return ec;
}

void stream_impl::make_parts(frame_link& link, const handshake& peer) {
  stream_limits o;
  o.reads = peer.max_reads != 0 && queue_pair()->options().max_reads != 0;
  o.blocks = stream_options_.sends;
  o.inbox.read_ahead = std::max<std::uint64_t>(
      o.inbox.read_ahead, std::uint64_t(stream_options_.receives) * stream_options_.receive_size);
  // If a later step throws, the link is destroyed. The protocol uses the link, so it is created
  // last.
  blocks_.resize(std::size_t(o.blocks) + o.offers);
  direct_ = std::make_unique<direct_pull>(*this);
  bytes_.emplace(link, o);
  bytes_->set_no_delay(no_delay_);
}

void stream_impl::on_connected(const connection_info& info) {
  {
    const std::lock_guard guard(mutex_);
    info_ = info;
    known_ = true;
  }
  link_impl::on_connected(info);
}

// --- Starting --------------------------------------------------------------------------------

bool stream_impl::begin(stream_reading& op) {
  op.ec = {};
  if (op.size == 0 && op.request.what == stream_read::kind::copy)
    return false;
  op.ec = bytes_ ? error_code() : check();
  if (!op.ec && !known_)
    op.ec = asio::error::not_connected;
  if (!op.ec && closed_) // the receives may have been released
    op.ec = asio::error::operation_aborted;
  if (!op.ec && !is_usable(op.memory))
    op.ec = asio::error::invalid_argument;
  if (op.ec) {
    if (op.request.what == stream_read::kind::wait)
      op.ec = {};
    return false;
  }
  op.request.capacity = op.request.what == stream_read::kind::copy ? op.size : ~std::uint64_t(0);
  op.request.op = &op;
  op.request.direct =
      !op.blocking_ && op.part_count == 1 && op.size >= bytes_->direct_from() && find_keys(op);
  bytes_->read(op.request);
  return true;
}

bool stream_impl::begin(stream_writing& op) {
  const bool waits = op.request.what == stream_write::kind::wait;
  op.ec = {};
  if (op.size == 0 && !waits)
    return false;
  if (!known_ || !bytes_) {
    if (!waits)
      op.ec = asio::error::broken_pipe;
    return false;
  }
  if (!is_usable(op.memory)) {
    op.ec = asio::error::invalid_argument;
    return false;
  }
  if (!waits && !op.blocking_)
    choose_way(op);
  op.request.bytes = waits ? 1 : op.size;
  op.request.op = &op;
  bytes_->write(op.request);
  return true;
}

bool stream_impl::begin(stream_error_wait& op) {
  op.ec = {};
  if (!known_ || check())
    return false;
  ++error_waits_;
  return true;
}

// Sends registered memory in place (`lend`) if that pays. A frame must not copy the bytes anyway,
// and the peer must need long enough to read an offer of them.
void stream_impl::choose_way(stream_writing& op) const {
  op.request.whole = op.registered;
  if (op.size <= frame_transfer::payload_room || op.part_count > most_lent || !find_keys(op))
    return;
  if (op.size < bytes_->offer_from() || (op.size >= lent_from && op.part_count == 1))
    op.request.what = stream_write::kind::lend;
  else
    op.request.whole = true;
}

// Whether all buffers lie in registered memory.
bool stream_impl::find_keys(stream_operation& op) const {
  if (op.registered)
    return true;
  for (std::size_t i = 0; i < op.part_count; ++i) {
    ibv_sge& part = op.parts[i];
    const auto found = pool().find(reinterpret_cast<const void*>(part.addr), part.length);
    if (!found)
      return false;
    part.lkey = found->lkey();
  }
  return true;
}

template <class Op>
bool stream_impl::start_op(Op& op) {
  turn t(*this);
  if (!begin(op))
    return false;
  operation_starting();
  active_.push_back(op);
  t.advance();
  return true;
}

bool stream_impl::start(stream_reading& op) { return start_op(op); }
bool stream_impl::start(stream_writing& op) { return start_op(op); }
bool stream_impl::start(stream_error_wait& op) { return start_op(op); }

// --- Without a handler -----------------------------------------------------------------------

/// Removes the operation of a blocking function from all lists when the function ends, also by an
/// exception or a forced unwind (of a cancelled thread). The operation lies on the caller's stack.
class stream_impl::stay {
public:
  stay(stream_impl& s, stream_operation& op) noexcept : stream_(s), op_(op) {}
  stay(const stay&) = delete;
  ~stay() { end(asio::error::operation_aborted); }

  /// Ends the operation with `why`, unless it has its result.
  void end(const error_code& why) {
    if (!std::exchange(over_, true))
      stream_.give_up(op_, why);
  }

private:
  stream_impl& stream_;
  stream_operation& op_;
  bool over_ = false;
};

// Returns true if the operation is over at once.
template <class Op>
bool stream_impl::begin_here(Op& op, bool wait) {
  turn t(*this);
  op.blocking_ = true;
  op.waiter_ = wait ? &waker::of_this_thread() : nullptr;
  op.finished_ = false;
  if (!begin(op))
    return true;
  active_.push_back(op);
  t.advance();
  return op.finished_;
}

template <class Op>
void stream_impl::run_op_here(Op& op, bool wait) {
  // Answers the peer even if bytes are at hand, because perhaps no thread runs the context. An
  // exception here loses nothing.
  completion_queue().run_ready_internal();
  if (begin_here(op, wait))
    return;
  stay here(*this, op);
  try {
    wait ? wait_for(op) : look_here();
  } catch (const std::exception&) { // from an operation of another object
    here.end(asio::error::operation_aborted);
    if (op.ec == asio::error::operation_aborted)
      throw;
  }
  here.end(asio::error::would_block);
}

// The operation lies on the caller's stack: no list may refer to it after this.
void stream_impl::give_up(stream_operation& op, const error_code& why) {
  turn t(*this);
  if (op.finished_)
    return;
  t.changed();
  if (why == asio::error::would_block)
    t.advance();
  if (!op.finished_ && withdraw_op(op))
    finish(op, why, 0, t.done);
  if (!op.finished_)
    t.advance();
}

// Replaces the context's work: perhaps no thread runs the context.
void stream_impl::look_here() {
  cm_service::of(context()).read_events();
  completion_queue().run_ready_internal();
}

void stream_impl::wait_for(stream_operation& op) {
  cm_service& connections = cm_service::of(context());
  while (!is_finished(op)) {
    connections.read_events();
    completion_queue().drive(connections.descriptor(), *op.waiter_);
    turn t(*this);
    if (!op.finished_)
      t.advance(); // memory may be free again, and perhaps no thread runs the context's timers
  }
}

bool stream_impl::is_finished(const stream_operation& op) const {
  const std::lock_guard guard(mutex_);
  return op.finished_;
}

void stream_impl::run_here(stream_reading& op, bool wait) { run_op_here(op, wait); }
void stream_impl::run_here(stream_error_wait& op, bool wait) { run_op_here(op, wait); }

// A blocking socket writes all bytes, as send(2).
void stream_impl::run_here(stream_writing& op, bool wait) {
  const bool waits = op.request.what == stream_write::kind::wait;
  // Until all bytes are written, not only the bytes of one call.
  const registered_buffer memory = op.memory;
  const buffer_access access = std::move(op.access);
  std::uint64_t total = 0;
  for (;;) {
    try {
      run_op_here(op, wait);
    } catch (const std::exception&) {
      if (total == 0)
        throw;
      op.value = 0;
      break;
    }
    total += waits ? 0 : op.value;
    if (!wait || waits || op.ec || op.size == 0 || op.value == op.size)
      break;
    std::uint64_t skip = op.value;
    op.size -= skip;
    for (std::size_t i = 0; i < op.part_count && skip != 0; ++i) {
      const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(op.parts[i].length, skip));
      op.parts[i].addr += n;
      op.parts[i].length -= n;
      skip -= n;
    }
  }
  if (total != 0)
    op.ec = {};
  op.value = total;
}

// --- Moving bytes ----------------------------------------------------------------------------

void stream_impl::add_payload(const outgoing_frame& frame, frame_transfer& to) {
  bytes_sent_.add(frame.header.length);
  auto& source = static_cast<stream_source&>(*frame.operation);
  if (source.is_block()) {
    const stream_block& b = static_cast<const stream_block&>(source);
    const const_buffer payload =
        (const_buffer(blocks_[b.index].memory) + b.frame_offset()).first(frame.header.length);
    if (payload.size() <= frame_transfer::payload_room)
      to.copy(payload.data(), payload.size());
    else
      to.add(element_of(payload));
    return;
  }
  auto& request = static_cast<stream_writing::request_type&>(static_cast<stream_write&>(source));
  for_range({request.op->parts, request.op->part_count}, request.frame_offset(),
            frame.header.length, [&](const ibv_sge& e) { to.add(e); });
}

void stream_impl::fill(const stream_action& a) {
  const auto& op = *static_cast<stream_writing::request_type&>(*a.write).op;
  registered_buffer& memory = blocks_[a.block->index].memory;
  if (a.at == 0) {
    error_code ec;
    memory = allocate(pool(), a.block->capacity, ec);
    if (ec)
      return bytes_->no_memory(*a.write, *a.block, ec);
  }
  gather({op.parts, op.part_count}, a.offset, a.bytes,
         static_cast<std::byte*>(memory.data()) + a.at);
}

void stream_impl::expose(stream_source& s) {
  memory_region* key = nullptr;
  void* data = nullptr;
  if (s.is_block()) {
    block& b = blocks_[static_cast<stream_block&>(s).index];
    key = &b.exposed;
    data = b.memory.data();
  } else {
    auto& op = *static_cast<stream_writing::request_type&>(static_cast<stream_write&>(s)).op;
    key = &op.exposed;
    data = reinterpret_cast<void*>(op.parts[0].addr);
  }
  error_code ec;
  try {
    *key = memory_region(pool().get_protection_domain(), data, s.bytes, access::remote_read, ec);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
  }
  if (ec)
    bytes_->not_exposed(s);
  else
    bytes_->exposed(s, key->remote());
}

void stream_impl::free(const stream_block& freed) {
  bytes_sent_.add(freed.taken());
  block& b = blocks_[freed.index];
  buffer_access none;
  if (b.exposed.is_open())
    end_key(b.exposed, b.memory, none);
  b.memory = {};
}

void stream_impl::pull(const stream_action& a) {
  error_code ec;
  try {
    while (chunks_.size() <= a.chunk->index)
      chunks_.push_back(std::make_unique<chunk>(*this));
  } catch (const std::bad_alloc&) {
    return bytes_->no_memory(asio::error::no_memory);
  }
  chunk& c = *chunks_[a.chunk->index];
  c.of = a.chunk;
  c.memory = allocate(pool(), a.memory.size, ec);
  if (ec) { // then fewer bytes, if there is memory for those
    a.chunk->bytes = std::min(a.chunk->bytes, stream_options_.receive_size);
    c.memory = allocate(pool(), a.chunk->bytes, ec);
  }
  if (!ec) {
    c.start(c.memory, a.memory.first(a.chunk->bytes));
    ec = c.failure();
  }
  if (!ec)
    return bytes_->pulling(*a.chunk);
  c.memory = {};
  bytes_->no_memory(ec);
}

void stream_impl::pull_direct(const stream_action& a) {
  const ibv_sge& to = *static_cast<stream_reading::request_type&>(*a.read).op->parts;
  direct_->to = a.read;
  direct_->size = a.memory.size;
  direct_->start({reinterpret_cast<void*>(to.addr), a.memory.size, to.lkey}, a.memory);
}

void stream_impl::take(const stream_action& a) {
  assert(a.read != nullptr && a.bytes != 0);
  bytes_received_.add(a.bytes);
  stream_reading& op = *static_cast<stream_reading::request_type&>(*a.read).op;
  registered_buffer& memory =
      a.chunk != nullptr ? chunks_[a.chunk->index]->memory : received(a.slot);
  const std::size_t at = a.chunk != nullptr ? a.at : frame_header::size + a.at;
  if (a.read->what == stream_read::kind::piece) {
    op.result = memory.slice(at, a.bytes);
    if (a.chunk == nullptr)
      memory = {}; // the next frame uses other memory
  } else {
    scatter(static_cast<const std::byte*>(memory.data()) + at, {op.parts, op.part_count}, a.offset,
            a.bytes);
  }
  if (a.emptied && a.chunk == nullptr)
    frames().release(a.slot);
}

bool stream_impl::run_parts(operation_list& done) {
  assert(mutex_.is_locked());
  if (!bytes_)
    return false;
  const stream_action a = bytes_->next();
  switch (a.what) {
  case stream_action::kind::fill:
    fill(a);
    return true;
  case stream_action::kind::freed:
    if (a.block != nullptr)
      free(*a.block);
    else
      chunks_[a.chunk->index]->memory = {};
    return true;
  case stream_action::kind::expose:
    expose(*a.source);
    return true;
  case stream_action::kind::pull:
    pull(a);
    return true;
  case stream_action::kind::pull_direct:
    pull_direct(a);
    return true;
  case stream_action::kind::stop:
    direct_->stop();
    return true;
  case stream_action::kind::wrote:
    finish(*static_cast<stream_writing::request_type&>(*a.write).op, a.write->ec, a.write->done,
           done);
    return true;
  case stream_action::kind::take:
    take(a);
    return true;
  case stream_action::kind::read:
    finish(*static_cast<stream_reading::request_type&>(*a.read).op, a.read->ec, a.read->done, done);
    return true;
  case stream_action::kind::none:
    break;
  }
  if (error_waits_ == 0 || !frames().stopped())
    return wait_for_peer(done);
  const auto i = std::find_if(active_.begin(), active_.end(), [](const operation& op) {
    return static_cast<const stream_operation&>(op).what == stream_operation::kind::error;
  });
  finish(static_cast<stream_operation&>(*i), {}, 0, done);
  return true;
}

void stream_impl::finish(stream_operation& op, const error_code& ec, std::uint64_t bytes,
                         operation_list& done) {
  active_.erase(operation_list::s_iterator_to(op));
  error_waits_ -= op.what == stream_operation::kind::error;
  op.ec = ec && closed_ && ec != error::device_keeps_memory
              ? error_code(asio::error::operation_aborted)
              : ec;
  if (op.what == stream_operation::kind::write) {
    auto& w = static_cast<stream_writing&>(op);
    bytes_sent_.add(w.request.taken());
    if (w.exposed.is_open() && !end_key(w.exposed, w.memory, w.access))
      op.ec = error::device_keeps_memory;
  }
  dropped_.drop(op.access);
  dropped_.drop(op.memory);
  op.value = bytes;
  if (op.blocking_) {
    op.finished_ = true;
    if (op.waiter_ != nullptr)
      op.waiter_->wake();
  } else {
    done.push_back(op);
  }
}

// --- Cancelling ------------------------------------------------------------------------------

// Returns false if the operation continues.
bool stream_impl::withdraw_op(stream_operation& op) {
  if (op.what == stream_operation::kind::read)
    return bytes_->cancel(static_cast<stream_reading&>(op).request);
  if (op.what == stream_operation::kind::write)
    return bytes_->cancel(static_cast<stream_writing&>(op).request);
  return true;
}

void stream_impl::cancel(std::uint64_t id, asio::cancellation_type_t type) {
  turn t(*this);
  const auto found = std::find_if(active_.begin(), active_.end(),
                                  [id](const operation& op) { return op.id == id; });
  if (found == active_.end())
    return;
  auto& op = static_cast<stream_operation&>(*found);
  if (!may_leave_effects(type) && op.what == stream_operation::kind::write &&
      bytes_->has_begun(static_cast<stream_writing&>(op).request))
    return;
  if (withdraw_op(op))
    finish(op, asio::error::operation_aborted, 0, t.done);
  t.advance();
}

void stream_impl::withdraw_all(operation_list& done) {
  for (auto i = active_.begin(); i != active_.end();) {
    auto& op = static_cast<stream_operation&>(*i++);
    if (withdraw_op(op))
      finish(op, asio::error::operation_aborted, 0, done);
  }
}

void stream_impl::cancel() {
  turn t(*this);
  withdraw_all(t.done);
  t.advance();
}

// --- State -----------------------------------------------------------------------------------

std::size_t stream_impl::available() {
  look_here();
  turn t(*this);
  t.advance();
  return bytes_ ? bytes_->available() : 0;
}

error_code stream_impl::shutdown(asio::socket_base::shutdown_type what) {
  turn t(*this);
  if (!known_ || !bytes_)
    return asio::error::not_connected;
  if (frames().stopped()) // after the peer's close nothing is left to shut down
    return frames().said_goodbye() ? error_code() : error_code(asio::error::not_connected);
  if (what != asio::socket_base::shutdown_receive)
    bytes_->shut_down_writes();
  if (what != asio::socket_base::shutdown_send)
    bytes_->shut_down_reads();
  t.advance();
  return {};
}

error_code stream_impl::endpoint(endpoint_type& result, bool remote) const {
  const std::lock_guard guard(mutex_);
  result = remote ? info_.remote : info_.local;
  return known_ || !remote ? error_code() : error_code(asio::error::not_connected);
}

void stream_impl::set_no_delay(bool on) {
  turn t(*this);
  no_delay_ = on;
  if (bytes_)
    bytes_->set_no_delay(on);
  t.advance();
}

bool stream_impl::no_delay() const {
  const std::lock_guard guard(mutex_);
  return no_delay_;
}

// --- The end ---------------------------------------------------------------------------------

void stream_impl::close() {
  bool lingers = true;
  {
    turn t(*this);
    t.changed();
    closed_ = true;
    lingers = stream_options_.linger > stream_options_.linger.zero();
    wait_anew();
    withdraw_all(t.done);
  }
  closer_->stream = std::static_pointer_cast<stream_impl>(shared_from_this());
  if (lingers && start_close(*closer_))
    return;
  closer_->stream.reset();
  link_impl::close();
}

// The new wait may be of another length.
void stream_impl::wait_anew() noexcept {
  waits_.reset();
  looking_ = false;
}

// Whether an open stream waits for the answer to a withdrawal. The peer's library sends that
// answer, not its application.
bool stream_impl::waits_for_answer() const noexcept { return !closed_ && bytes_->withdrawing(); }

// The longest time without progress of the peer. The linger option concerns a close only.
std::chrono::milliseconds stream_impl::patience() const noexcept {
  if (closed_)
    return stream_options_.linger;
  return waits_for_answer() ? std::max(usual_linger_, least_for_answer) : usual_linger_;
}

// A peer that takes other bytes may still owe the answer.
std::uint64_t stream_impl::signs_of_peer() const noexcept {
  return waits_for_answer() ? bytes_->answered() : bytes_->taken();
}

// Whether progress of the peer is still possible. Once asked, the peer has the same time again to
// answer.
bool stream_impl::hopes(protocol_clock::time_point now) const noexcept {
  const auto limit = patience();
  return waits_ && limit != limit.zero() && (!asked_ || now - *asked_ < limit);
}

// Called when no action is left. Returns true if there is an action now.
bool stream_impl::wait_for_peer(operation_list& done) {
  assert(bytes_);
  const bool owes = bytes_->owes();
  if (bytes_->withdrawing() != withdrawing_) // the patience changes
    wait_anew();
  withdrawing_ = bytes_->withdrawing();
  bool hopes_now = false;
  if ((!owes && !closed_) || failing()) {
    waits_.reset();
  } else {
    const auto now = protocol_clock::now();
    if (!waits_ || signs_of_peer() != signs_) {
      waits_ = now;
      asked_.reset();
    }
    signs_ = signs_of_peer();
    hopes_now = hopes(now);
    if (hopes_now && !asked_ && now - *waits_ >= patience()) {
      asked_ = now;
      bytes_->ask();
      return true;
    }
  }
  // In mode `manual`, the end of the holder would wait for the user.
  const bool holds = owes && hopes_now && frames().sends_under_way() == 0 &&
                     completion_queue().options().mode != completion_mode::manual;
  if (holds && holder_->now == holder::state::idle) {
    holder_->now = holder::state::holding;
    operation_starting();
  } else if (!holds && holder_->now == holder::state::holding) {
    holder_->now = holder::state::ending;
    holder_->stream = std::static_pointer_cast<stream_impl>(shared_from_this());
    done.push_back(*holder_);
  }
  if (hopes_now && !looking_)
    look_later();
  return false;
}

void stream_impl::look(link_impl& link) {
  auto& self = static_cast<stream_impl&>(link);
  self.looking_ = false;
  if (!self.waits_ || !self.asked_ || self.signs_of_peer() != self.signs_)
    return;
  const auto limit = self.patience();
  const auto waited = protocol_clock::now() - *self.asked_;
  if (waited < limit) // the wait has begun anew
    return;
  if (waited > limit + std::max(limit / 2, late)) // the context was blocked: look for news
    self.waits_.reset();
  else if (self.closed_ || self.bytes_->withdrawing())
    self.fail(asio::error::timed_out);
}

// Called by the stream's destructor too, so this does not throw.
void stream_impl::look_later() {
  try {
    call_at(timer::look, asked_.value_or(*waits_) + patience(), &stream_impl::look);
    looking_ = true;
  } catch (const std::bad_alloc&) {
    fail(make_error_code(boost::system::errc::not_enough_memory));
  }
}

void stream_impl::set_linger(const asio::socket_base::linger& option) {
  turn t(*this);
  linger_option_ = option;
  stream_options_.linger =
      option.enabled() ? limited(std::chrono::seconds(option.timeout())) : usual_linger_;
  wait_anew();
  t.advance();
}

asio::socket_base::linger stream_impl::linger() const {
  const std::lock_guard guard(mutex_);
  return linger_option_;
}

// Sends bytes that were written, as the kernel does for a socket.
completion_queue_impl* stream_impl::last_work() {
  if (!is_closed())
    close();
  turn t(*this);
  if (check() || frames().told_goodbye())
    return nullptr;
  if (!std::exchange(leaving_, true))
    wait_anew();
  t.advance();
  return hopes(protocol_clock::now()) ? &completion_queue() : nullptr;
}

bool stream_impl::is_closed() const {
  const std::lock_guard guard(mutex_);
  return closed_;
}

} // namespace asio_rdma::detail
