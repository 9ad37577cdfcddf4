// SPDX-License-Identifier: BSL-1.0
// The messages of the connection manager between processes: MPA's start frames on TCP (RFC 5044,
// 6581).
#include "cm/addresses.hpp"
#include "cm/cm_id.hpp"
#include "cm/resolution.hpp"

#include "device/in_force.hpp"
#include "device/limits.hpp"
#include "wire/traffic_class.hpp"
#include "wire/wire_listener.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/resource.h>

namespace soft {
namespace {

// Connections of a listener that have not sent their request.
constexpr std::size_t most_unknown = 128;

// A waiting request of another process has a descriptor. The program needs the others.
bool has_descriptors() {
  rlimit most{};
  return getrlimit(RLIMIT_NOFILE, &most) != 0 ||
         static_cast<rlim_t>(waiting_requests()) < most.rlim_cur / 4;
}

// Within one machine TCP is as safe as CRCs are: the bytes stay in its memory. Else CRCs are the
// default. Source: RFC 5044, section 4.4
bool asks_for_crc(const cm_id& id) {
  return current().crc.value_or(index_of(gid_of(id.route.addr.dst_addr)) < 0);
}

iwarp::start_options options_of(const cm_id& id) {
  return start_options_of(id.responder_resources, id.initiator_depth, asks_for_crc(id));
}

// False: no event can tell so much, so it is not acceptable (RFC 5044, section 7.1.2, rule 9).
bool take_data(const iwarp::start_frame& f, private_data& to) {
  const auto bytes = f.private_data();
  to.size = static_cast<std::uint8_t>(std::min(bytes.size(), to.bytes.size()));
  std::copy_n(bytes.begin(), to.size, to.bytes.begin());
  return bytes.size() <= to.bytes.size();
}

void put(iwarp::start_frame& f, const private_data& data) {
  f.set_private_data({data.bytes.data(), data.size});
}

std::uint8_t depth(std::uint16_t n) {
  return static_cast<std::uint8_t>(std::min<std::uint16_t>(n, most_reads()));
}

} // namespace

/// The TCP connections of a listener.
struct cm_listener final : wire_listener {
  explicit cm_listener(cm_id& l) : wire_listener(l.port_holder, most_unknown), id(l) {}

  void requested(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& f) override {
    auto made = std::make_unique<cm_id>();
    cm_id& to = *made;
    to.ps = RDMA_PS_TCP;
    to.qp_type = IBV_QPT_RC;
    socklen_t size = sizeof(sockaddr_storage);
    getsockname(w->socket(), &to.route.addr.src_addr, &size);
    size = sizeof(sockaddr_storage);
    getpeername(w->socket(), &to.route.addr.dst_addr, &size);
    to.first = f;
    const bool negotiates = f.enhanced && f.ird != iwarp::start_frame::not_negotiated;
    to.responder_resources = negotiates ? depth(f.ord) : most_reads();
    to.initiator_depth = negotiates ? depth(f.ird) : most_reads();
    to.peer_qp_num = w->number();
    to.traffic_class = traffic_class_of_peer(w->socket(), to.route.addr.src_addr.sa_family);
    private_data data;
    cm_id* const id_of_request =
        take_data(f, data) && has_descriptors() && takes_from(id, to.route.addr.dst_addr)
            ? take_request(id, std::move(made), data)
            : nullptr;
    if (id_of_request != nullptr) {
      id_of_request->wire = w;
      w->set_owner(*id_of_request);
    } else {
      w->send_start(iwarp::make_rejection(f));
      w->close();
    }
  }

  cm_id& id;
};

namespace {

// As rsockets read it: the size of queue pairs, at the place that it has in any version.
constexpr std::array<int, 64> device_of_rsockets = [] {
  std::array<int, 64> all{};
  all.fill(limits::work_requests);
  return all;
}();

} // namespace

cm_id::cm_id() : librdmacm_id{} { device = device_of_rsockets.data(); }
cm_id::~cm_id() = default;

int listen_to_others(cm_id& id) {
  if (::listen(id.port_holder, id.backlog) != 0)
    return errno;
  auto made = std::make_unique<cm_listener>(id);
  if (const int error = engine::get().watch(id.port_holder, EPOLLIN, *made))
    return error;
  id.sockets = std::move(made);
  return 0;
}

void ignore_others(cm_id& id) { id.sockets.reset(); }

void send_request_by_wire(cm_id& from, const private_data& data) {
  from.first = iwarp::make_request(options_of(from));
  put(from.first, data);
  int error = 0;
  from.state = cm_state::requesting;
  set_traffic_class(from.port_holder, from.route.addr.dst_addr.sa_family, from.traffic_class);
  from.wire = iwarp_wire::connect(std::exchange(from.port_holder, -1), from.route.addr.dst_addr,
                                  size_of(from.route.addr.dst_addr), from, error);
  if (!from.wire)
    return from.ended(error);
  from.peer_qp_num = from.wire->number();
  from.wire->expect(current().answer);
  from.wire->send_start(from.first);
}

void send_reply_by_wire(cm_id& from, const private_data& data) {
  iwarp::start_answer a = answer(from.first, options_of(from));
  put(a.reply, data);
  from.wire->send_start(a.reply);
  if (a.result.error != iwarp::start_error::none) {
    from.wire->give_up();
    return from.ended(EPROTO);
  }
  from.state = cm_state::replied;
  from.initiator_depth = depth(a.result.ord);
  from.responder_resources = depth(a.result.ird);
  from.wire->begin(a.result, false);
  if (a.result.peer_to_peer)
    return from.wire->expect(current().answer);
  from.state = cm_state::connected; // the initiator says nothing more
  from.tell(RDMA_CM_EVENT_ESTABLISHED);
}

void send_reject_by_wire(cm_id& from, iwarp_wire& w, const private_data& data) {
  iwarp::start_frame f = make_rejection(from.first);
  put(f, data);
  w.send_start(f);
}

void cm_id::started(const iwarp::start_frame& f) {
  const iwarp::start_result r = conclude(first, f, options_of(*this));
  private_data data;
  const bool is_whole = take_data(f, data);
  if (r.error != iwarp::start_error::none || !is_whole) {
    state = cm_state::ended;
    const auto w = std::exchange(wire, nullptr);
    if (const iwarp::failure e = to_protocol_error(r.error))
      w->refuse(*e, r.crc);
    else
      w->close();
    if (r.error == iwarp::start_error::rejected)
      return tell(RDMA_CM_EVENT_REJECTED, reject_consumer, &data, reject_data);
    return tell(RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO);
  }
  state = cm_state::responded;
  initiator_depth = depth(r.ord);
  responder_resources = depth(r.ird);
  wire->begin(r, true);
  tell(RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &data, reply_data);
}

void cm_id::heard() {
  if (state != cm_state::replied)
    return;
  state = cm_state::connected;
  tell(RDMA_CM_EVENT_ESTABLISHED);
}

void cm_id::ended(int error) {
  const auto w = std::exchange(wire, nullptr);
  if (state == cm_state::removed)
    return;
  switch (std::exchange(state, cm_state::ended)) {
  case cm_state::requesting:
    if (error == ECONNREFUSED)
      tell(RDMA_CM_EVENT_REJECTED, reject_no_listener, nullptr, reject_data);
    else if (error == 0 || error == ECONNRESET)
      tell(RDMA_CM_EVENT_REJECTED, reject_consumer, nullptr, reject_data);
    else
      tell(RDMA_CM_EVENT_UNREACHABLE, -error);
    break;
  case cm_state::requested:
  case cm_state::replied:
    if (error == ETIMEDOUT)
      tell(RDMA_CM_EVENT_UNREACHABLE, -error);
    else if (error == ESHUTDOWN)
      tell(RDMA_CM_EVENT_DISCONNECTED);
    else
      tell(RDMA_CM_EVENT_REJECTED, reject_timeout, nullptr, reject_data);
    break;
  case cm_state::responded:
  case cm_state::connected:
    tell(RDMA_CM_EVENT_DISCONNECTED);
    break;
  default:
    break;
  }
}

} // namespace soft
