// SPDX-License-Identifier: BSL-1.0
#include "sides.hpp"

#include <catch2/catch.hpp>

namespace soft::test {
namespace {

owned_events make_events() {
  owned_events made(rdma_create_event_channel());
  REQUIRE(made);
  return made;
}

// The next event of a channel, which must be this one. Returns its id.
rdma_cm_id* expect(rdma_event_channel& from, rdma_cm_event_type what) {
  rdma_cm_event* e = nullptr;
  REQUIRE(rdma_get_cm_event(&from, &e) == 0);
  const rdma_cm_event_type type = e->event;
  rdma_cm_id* const id = e->id;
  REQUIRE(rdma_ack_cm_event(e) == 0);
  REQUIRE(type == what);
  return id;
}

ibv_context& context_of_ids() {
  ibv_context** const all = rdma_get_devices(nullptr);
  REQUIRE(all != nullptr);
  ibv_context* const first = all[0];
  rdma_free_devices(all);
  REQUIRE(first != nullptr);
  return *first;
}

void play_part(party& of, const part& p) {
  try {
    p(of);
  } catch (const party::connection_ended&) {
    // as in each scene whose connection is lost
  } catch (const party::stuck&) {
    of.give_up();
  }
}

} // namespace

listening_side::listening_side() : events_(make_events()) {
  REQUIRE(rdma_create_id(events_.get(), &id_, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in a = local_address(0);
  REQUIRE(rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&a)) == 0);
  REQUIRE(rdma_listen(id_, 8) == 0);
  trade(parent_channel, ntohs(rdma_get_src_port(id_)));
}

listening_side::~listening_side() { rdma_destroy_id(id_); }

void listening_side::play(const scene& s, const part& p, bool comes) {
  party own(s, role::listener, *id_->verbs, *events_);
  own.set_peer(trade(parent_channel, own.own_grants()));
  if (comes)
    play_part(own, [&](party& o) {
      o.take(expect(*events_, RDMA_CM_EVENT_CONNECT_REQUEST));
      o.accept();
      p(o);
    });
  trade(parent_channel, own.finish(comes));
}

connecting_side::connecting_side(const std::string& listening)
    : other_(listening, {}), events_(make_events()) {
  port_ = std::to_string(trade(channel(), std::uint16_t{0}));
}

rdma_cm_id* connecting_side::id_to(const std::string& port) {
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in a = local_address(static_cast<std::uint16_t>(std::stoi(port)));
  REQUIRE(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&a), 1000) == 0);
  expect(*events_, RDMA_CM_EVENT_ADDR_RESOLVED);
  REQUIRE(rdma_resolve_route(id, 1000) == 0);
  expect(*events_, RDMA_CM_EVENT_ROUTE_RESOLVED);
  return id;
}

connecting_side::reports connecting_side::play(const scene& s, const std::string& port,
                                               const part& p, const std::function<void()>& ended) {
  party own(s, role::connector, context_of_ids(), *events_);
  own.set_peer(trade(channel(), own.own_grants()));
  play_part(own, [&](party& o) {
    o.take(id_to(port));
    o.connect();
    p(o);
  });
  reports r;
  r.own = own.finish(true);
  if (ended)
    ended();
  r.other = trade(channel(), r.own);
  return r;
}

namespace {

// The reports of a side and of its peer.
std::string fault_between(const report& of, const report& at) {
  if (of.fault[0] != '\0')
    return of.fault.data();
  if (!of.is_clean)
    return "an object is left";
  if (at.carried < of.fetched)
    return "a READ or an atomic has succeeded before an earlier request had its effect";
  if (at.touched > of.posted)
    return "a request has had an effect that was not posted";
  if (at.touched > at.carried + 1)
    return "a request has had an effect before an earlier one";
  return {};
}

std::string of_sides(const std::string& connector, const std::string& listener) {
  if (!connector.empty())
    return "connector: " + connector;
  return listener.empty() ? listener : "listener: " + listener;
}

} // namespace

std::string fault_of(const connecting_side::reports& r) {
  return of_sides(fault_between(r.own, r.other), fault_between(r.other, r.own));
}

std::string fault_of_whole(const scene& s, const connecting_side::reports& r) {
  const auto lacks = [&](role by, const report& of, const report& at) -> std::string {
    const std::size_t all = s.of(by).size();
    if (!of.established || !of.disconnected)
      return "it was not connected until the end";
    if (of.posted != all || of.sent != all)
      return std::to_string(of.posted) + " requests of " + std::to_string(all) + " were posted, " +
             std::to_string(of.sent) + " have succeeded";
    if (at.carried != all)
      return std::to_string(at.carried) + " requests of " + std::to_string(all) +
             " have had their effect";
    return {};
  };
  const std::string first = fault_of(r);
  return !first.empty() ? first
                        : of_sides(lacks(role::connector, r.own, r.other),
                                   lacks(role::listener, r.other, r.own));
}

} // namespace soft::test
