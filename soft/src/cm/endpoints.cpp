// SPDX-License-Identifier: BSL-1.0
// rdma_getaddrinfo(3), rdma_create_ep(3): addresses by name, and an id with a queue pair in one
// step.
#include "cm/addresses.hpp"
#include "cm/cm_id.hpp"
#include "verbs/next.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <netdb.h>
#include <rdma/rdma_verbs.h>

using namespace soft;

namespace {

sockaddr* copy_of(const sockaddr* a, socklen_t size) {
  auto* const made = static_cast<sockaddr*>(std::malloc(size));
  if (made != nullptr)
    std::memcpy(made, a, size);
  return made;
}

} // namespace

SOFT_EXPORT void rdma_freeaddrinfo(rdma_addrinfo* first) {
  while (first != nullptr) {
    rdma_addrinfo* const next = first->ai_next;
    std::free(first->ai_src_addr);
    std::free(first->ai_dst_addr);
    std::free(first);
    first = next;
  }
}

SOFT_EXPORT int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                                 rdma_addrinfo** result) {
  addrinfo wanted{}, *found = nullptr;
  const bool datagrams =
      hints != nullptr && (hints->ai_port_space == RDMA_PS_UDP || hints->ai_qp_type == IBV_QPT_UD);
  wanted.ai_socktype = datagrams ? SOCK_DGRAM : SOCK_STREAM;
  const bool passive = hints != nullptr && (hints->ai_flags & RAI_PASSIVE) != 0;
  if (hints != nullptr) {
    wanted.ai_flags = (passive ? AI_PASSIVE : 0) |
                      ((hints->ai_flags & RAI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0);
    wanted.ai_family = hints->ai_family;
  }
  if (node == nullptr && service == nullptr && hints == nullptr) {
    errno = EINVAL;
    return -1;
  }
  if (node != nullptr || service != nullptr) {
    if (const int error = getaddrinfo(node, service, &wanted, &found))
      return error;
  }
  auto* const made = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  bool complete = made != nullptr;
  if (complete) {
    made->ai_flags = hints != nullptr ? hints->ai_flags : 0;
    made->ai_qp_type = hints != nullptr && hints->ai_qp_type != 0 ? hints->ai_qp_type
                       : datagrams                                ? IBV_QPT_UD
                                                                  : IBV_QPT_RC;
    made->ai_port_space = hints != nullptr && hints->ai_port_space != 0 ? hints->ai_port_space
                          : datagrams                                   ? RDMA_PS_UDP
                                                                        : RDMA_PS_TCP;
    const auto copy = [](const sockaddr* from, socklen_t size, sockaddr*& to, socklen_t& to_size) {
      to = copy_of(from, size);
      to_size = to == nullptr ? 0 : size;
      return to != nullptr;
    };
    if (found != nullptr) {
      made->ai_family = found->ai_family;
      complete = passive
                     ? copy(found->ai_addr, found->ai_addrlen, made->ai_src_addr, made->ai_src_len)
                     : copy(found->ai_addr, found->ai_addrlen, made->ai_dst_addr, made->ai_dst_len);
    } else { // then there are hints
      made->ai_family = hints->ai_family;
      if (hints->ai_dst_len != 0)
        complete = copy(hints->ai_dst_addr, hints->ai_dst_len, made->ai_dst_addr, made->ai_dst_len);
    }
    if (complete && made->ai_src_len == 0 && hints != nullptr && hints->ai_src_len != 0)
      complete = copy(hints->ai_src_addr, hints->ai_src_len, made->ai_src_addr, made->ai_src_len);
  }
  if (found != nullptr)
    freeaddrinfo(found);
  if (complete) {
    *result = made;
    return 0;
  }
  rdma_freeaddrinfo(made);
  errno = ENOMEM;
  return -1;
}

SOFT_EXPORT int rdma_create_ep(rdma_cm_id** result, rdma_addrinfo* where, ibv_pd* pd,
                               ibv_qp_init_attr* a) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(nullptr, &id, nullptr, static_cast<rdma_port_space>(where->ai_port_space)) !=
      0)
    return -1;
  const auto give_up = [&] {
    const int error = errno;
    rdma_destroy_ep(id);
    errno = error;
    return -1;
  };
  if (a != nullptr)
    a->qp_type = static_cast<ibv_qp_type>(where->ai_qp_type);
  if ((where->ai_flags & RAI_PASSIVE) != 0) {
    if (rdma_bind_addr(id, where->ai_src_addr) != 0)
      return give_up();
    if (a != nullptr) {
      cm_id::of(id).for_requests = *a;
      cm_id::of(id).pd_for_requests = pd;
    }
  } else {
    if (rdma_resolve_addr(id, where->ai_src_addr, where->ai_dst_addr, 2000) != 0 ||
        rdma_resolve_route(id, 2000) != 0)
      return give_up();
    if (a != nullptr && rdma_create_qp(id, pd, a) != 0)
      return give_up();
  }
  *result = id;
  return 0;
}

SOFT_EXPORT void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr)
    rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  rdma_destroy_id(id);
}
