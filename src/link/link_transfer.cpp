// SPDX-License-Identifier: BSL-1.0
// The work requests of a link: they are posted, complete, or are withdrawn.
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "link/link_session.hpp"
#include "memory/memory_pool_impl.hpp"
#include "verbs/withheld.hpp"

#include <cassert>
#include <cstring>
#include <utility>

namespace asio_rdma::detail {

link_transfer::link_transfer(link_impl& link, done_function done) noexcept
    : send_operation(&link_transfer::run), link_(link), done_(done) {
  wr.sg_list = elements.data();
  wr.num_sge = 0;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = 0;
  bytes = 0; // the parts of a link keep to the device's limit, so the start does not check them
  usual = false;
  inline_bytes = never_inline;
  internal = true;
}

void link_transfer::run(operation* base, disposal how) {
  auto& self = static_cast<link_transfer&>(*base);
  self.link_.on_transfer(self, how);
}

void idle_visit::run(operation* base, disposal how) {
  static_cast<idle_visit&>(*base).link_.on_idle(how);
}

frame_transfer::frame_transfer(link_impl& link, std::uint32_t slot, std::byte* place) noexcept
    : link_transfer(link, &frame_transfer::on_done), slot_(slot), place_(place) {}

void frame_transfer::begin(const frame_header& header, std::uint32_t lkey) noexcept {
  const frame_bytes encoded = encode(header);
  elements[0] = element_of({place_, 0, lkey});
  wr.num_sge = 1;
  copy(encoded.data(), encoded.size());
}

void frame_transfer::copy(const void* data, std::size_t n) noexcept {
  assert(elements[0].length + n <= link().options().send_room);
  if (n == 0)
    return;
  std::memcpy(place_ + elements[0].length, data, n);
  elements[0].length += static_cast<std::uint32_t>(n);
}

void frame_transfer::add(const ibv_sge& element) noexcept {
  if (link().copies_frames())
    return copy(reinterpret_cast<const void*>(element.addr), element.length);
  assert(static_cast<std::size_t>(wr.num_sge) < elements.size() || element.length == 0);
  if (element.length != 0)
    elements[static_cast<std::size_t>(wr.num_sge++)] = element;
}

void frame_transfer::finish(bool fenced) noexcept {
  const bool one = wr.num_sge == 1;
  usual = one && !fenced;
  wr.send_flags = IBV_SEND_SIGNALED | (fenced ? IBV_SEND_FENCE : 0);
  inline_bytes = one ? elements[0].length : never_inline;
}

void frame_transfer::on_done(link_transfer& t, operation_list&) {
  auto& self = static_cast<frame_transfer&>(t);
  if (!self.ec)
    self.link().frames().on_sent(self.slot_);
}

void link_impl::posting() {
  assert(is_locked());
  if (posted_++ == 0)
    self_ = session_.shared_from_this();
}

bool link_impl::post(link_transfer& t) {
  assert(is_locked());
  posting();
  t.ec = {};
  t.withdrawn = false;
  t.wr.next = nullptr; // the work request may have been in a chain before
  requests_started_.add();
  if (latency_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    t.started_at = latency_tally::clock::now();
  if (qp_->start(static_cast<send_operation&>(t)))
    return true;
  requests_ended_.add();
  not_posted();
  close_sink(t);
  end_with(t);
  return false;
}

void link_impl::gather() {
  assert(is_locked());
  if (!failing() && !std::exchange(gathering_, true))
    qp_->hold();
}

// A work request that was flushed does not know the reason of the end.
void link_impl::end_with(link_transfer& t) {
  fail(t.ec);
  if (t.ec == asio::error::connection_reset)
    t.ec = check();
}

error_code link_impl::open_sink(link_transfer& read, bool device_only) {
  assert(is_locked());
  error_code ec;
  ibv_sge& e = read.elements[0];
  if (qp_->limits_reads())
    read.usual = false;
  if (member_device().type() != transport::iwarp || read.wr.num_sge != 1 || e.length == 0)
    return ec;
  const const_buffer memory(reinterpret_cast<const void*>(e.addr), e.length, e.lkey, device_only);
  read.sink_ = register_view(pool_.get_protection_domain(), memory, access::local_write, ec);
  if (!ec) {
    e.lkey = read.sink_.lkey();
    registrations_.add();
  }
  return ec;
}

void link_impl::close_sink(link_transfer& t) noexcept {
  if (!t.sink_.is_open())
    return;
  error_code ec;
  t.sink_.close(ec);
  if (!ec)
    return;
  kept_blocks memory;
  memory_pool_impl::find_blocks({t.elements.data(), 1}, memory);
  withhold_key(std::move(t.sink_), std::move(memory));
  t.ec = error::device_keeps_memory;
}

// The visit counts as a work request, which keeps the link alive.
void link_impl::visit_when_idle() {
  assert(is_locked());
  if (failing() || idle_ != idle_state::none)
    return;
  idle_ = idle_state::due;
  cq_->operation_starting();
  posting();
}

void link_impl::on_idle(disposal how) {
  returned(how, [&](operation_list&) {
    idle_ = idle_state::none;
    session_.on_idle(idle_visit_.value != 0);
  });
}

bool link_impl::withdraw(link_transfer& t) {
  assert(is_locked());
  t.withdrawn = t.withdrawn || qp_->withdraw(t.id);
  return t.withdrawn;
}

void link_impl::send(std::uint32_t slot, const outgoing_frame& frame) {
  assert(is_locked());
  frame_transfer& t = sends_[slot];
  t.begin(frame.header, send_memory_.lkey());
  if (frame.payload_of_operation)
    session_.add_payload(frame, t);
  else
    t.copy(frame.payload.data(), frame.header.length);
  t.finish(frame.fenced);
  frames_sent_.add();
  post(t);
}

void link_impl::measure(link_transfer& t) noexcept {
  const auto started = std::exchange(t.started_at, {});
  const bool is_bind = t.wr.opcode == IBV_WR_BIND_MW || t.wr.opcode == IBV_WR_LOCAL_INV;
  if (started == decltype(started)() || t.ec || is_bind)
    return;
  latencies_measured& measured = *latency_;
  (t.wr.opcode == IBV_WR_SEND ? measured.sends : measured.remote)
      .add(latency_tally::clock::now() - started);
}

void link_impl::on_transfer(link_transfer& t, disposal how) {
  if (how == disposal::destroy)
    t.fail(asio::error::operation_aborted);
  returned(how, [&](operation_list& done) {
    requests_ended_.add();
    if (latency_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      measure(t);
    if (t.wr.opcode != IBV_WR_BIND_MW && t.wr.opcode != IBV_WR_LOCAL_INV) // without the peer
      saw_sign();
    close_sink(t);
    if (t.ec && !t.withdrawn)
      end_with(t);
    t.done_(t, done);
  });
}

} // namespace asio_rdma::detail
