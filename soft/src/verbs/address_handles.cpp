// SPDX-License-Identifier: BSL-1.0
// Address handles.
#include "device/objects.hpp"
#include "roce/network_header.hpp"
#include "verbs/next.hpp"

#include <cerrno>
#include <new>

using namespace soft;

namespace {

int fail(int error) {
  errno = error;
  return -1;
}

// The way back to the sender of a datagram.
int init_from(const ibv_wc& wc, const ibv_grh* header, std::uint8_t port, ibv_ah_attr& a) {
  a = {};
  a.dlid = wc.slid;
  a.sl = wc.sl;
  a.src_path_bits = wc.dlid_path_bits;
  a.port_num = port;
  if ((wc.wc_flags & IBV_WC_GRH) == 0)
    return 0;
  const auto way =
      roce::decode(std::span<const std::byte, 40>(reinterpret_cast<const std::byte*>(header), 40));
  if (!way)
    return fail(EPROTONOSUPPORT);
  const int own = index_of(way->destination);
  if (own < 0)
    return fail(EINVAL);
  a.is_global = 1;
  a.grh.dgid = way->source;
  a.grh.sgid_index = static_cast<std::uint8_t>(own);
  a.grh.flow_label = way->flow_label;
  a.grh.hop_limit = way->hop_limit;
  a.grh.traffic_class = way->traffic_class;
  return 0;
}

} // namespace

// RoCE needs a global route, by a GID of the device and of the same kind of address.
SOFT_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* a) {
  if (!is_soft(pd->context))
    return SOFT_NEXT(ibv_create_ah)(pd, a);
  const auto own = gids();
  const gid_entry source = a->grh.sgid_index < own.size() ? own[a->grh.sgid_index] : gid_entry{};
  if (a->is_global == 0 || a->port_num != 1 || is_zero(source.gid) ||
      roce::is_ipv4(source.gid) != roce::is_ipv4(a->grh.dgid)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* const made = new (std::nothrow) address_handle{};
  if (made == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  made->context = pd->context;
  made->pd = pd;
  made->attributes = *a;
  made->source = source;
  made->is_local = index_of(a->grh.dgid) >= 0;
  ++domain::of(pd).objects;
  return made;
}

SOFT_EXPORT int ibv_init_ah_from_wc(ibv_context* c, std::uint8_t port, ibv_wc* wc, ibv_grh* header,
                                    ibv_ah_attr* a) {
  return is_soft(c) ? init_from(*wc, header, port, *a)
                    : SOFT_NEXT(ibv_init_ah_from_wc)(c, port, wc, header, a);
}

SOFT_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* header,
                                          std::uint8_t port) {
  if (!is_soft(pd->context))
    return SOFT_NEXT(ibv_create_ah_from_wc)(pd, wc, header, port);
  ibv_ah_attr a{};
  return init_from(*wc, header, port, a) == 0 ? ibv_create_ah(pd, &a) : nullptr;
}

SOFT_EXPORT int ibv_destroy_ah(ibv_ah* ah) {
  if (!is_soft(ah->context))
    return SOFT_NEXT(ibv_destroy_ah)(ah);
  --domain::of(ah->pd).objects;
  delete static_cast<address_handle*>(ah);
  return 0;
}
