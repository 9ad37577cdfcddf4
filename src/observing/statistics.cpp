// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/statistics.hpp>

#include "connecting/acceptor_impl.hpp"
#include "core/logging.hpp"
#include "link/link_session.hpp"
#include "memory/memory_pool_impl.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace asio_rdma {
namespace {

using detail::acceptor_impl;
using detail::cm_service;
using detail::completion_service;
using detail::endpoint_text;
using detail::handshake;
using detail::link_session;
using detail::queue_pair_impl;

context_statistics::link describe(const link_session& session) {
  const detail::link_impl& from = session.link();
  context_statistics::link result;
  result.is_stream = from.kind() == handshake::kind::stream;
  result.device = from.member_device().name();
  result.queue_pair = from.queue_pair()->number();
  result.state = from.queue_pair()->state();
  if (const auto peer = from.peer(); peer.port() != 0 || !peer.address().is_unspecified())
    result.peer = endpoint_text(peer).c_str();
  result.counters = session.counters();
  if (from.measures_latency())
    result.latencies = from.latencies();
  return result;
}

// A part is counted with the pool that it is a part of.
void add_pool(std::vector<memory_pool>& known, context_statistics& to, const memory_pool& of_link) {
  const memory_pool& whole = of_link.impl()->whole();
  const memory_pool& pool = whole.is_open() ? whole : of_link;
  if (std::find(known.begin(), known.end(), pool) != known.end())
    return;
  known.push_back(pool);
  to.pools.push_back(
      {pool.get_protection_domain().get_device().name(), pool.limit(), pool.statistics()});
}

} // namespace

// The members are released at the end: the last reference to one may be among them.
context_statistics statistics(asio::execution_context& context) {
  context_statistics result;
  if (!asio::has_service<completion_service>(context))
    return result;
  auto& service = asio::use_service<completion_service>(context);
  const auto members = service.members();
  std::vector<memory_pool> pools;
  std::vector<const queue_pair_impl*> of_links;
  for (const auto& member : members)
    if (const auto* const session = dynamic_cast<const link_session*>(member.get())) {
      result.links.push_back(describe(*session));
      of_links.push_back(session->link().queue_pair().get());
      add_pool(pools, result, session->link().pool());
    }
  for (const auto& member : members)
    if (const auto* const qp = dynamic_cast<const queue_pair_impl*>(member.get());
        qp != nullptr && std::find(of_links.begin(), of_links.end(), qp) == of_links.end())
      result.queue_pairs.push_back({qp->member_device().name(), qp->number(), qp->state()});
  for (const auto& queue : service.queues())
    result.completion_queues.push_back(
        {queue->get_device().name(), queue->options().mode, queue->counters()});
  if (asio::has_service<cm_service>(context))
    for (const auto& handler : asio::use_service<cm_service>(context).handlers())
      if (const auto* const a = dynamic_cast<const acceptor_impl*>(handler.get());
          a != nullptr && a->native_handle() != nullptr)
        result.acceptors.push_back({endpoint_text(a->local_endpoint()).c_str(), a->statistics()});
  return result;
}

} // namespace asio_rdma
