// SPDX-License-Identifier: BSL-1.0
#include "cm_calls.hpp"

#include <cerrno>
#include <dlfcn.h>

std::function<int(test::cm_call, const rdma_cm_id*)> test::before_cm_call;

namespace {

using test::cm_call;

/// librdmacm's own function, after the test has been told, unless the test lets it fail.
template <class Function, class... Arguments>
int announced(Function*, const char* name, cm_call call, const rdma_cm_id* id,
              Arguments... arguments) {
  if (const int error = test::before_cm_call ? test::before_cm_call(call, id) : 0) {
    errno = error;
    return -1;
  }
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name))(arguments...);
}

} // namespace

extern "C" {

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                   rdma_port_space ps) {
  return announced(rdma_create_id, "rdma_create_id", cm_call::create_id, nullptr, channel, id,
                   context, ps);
}

int rdma_resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout) {
  return announced(rdma_resolve_addr, "rdma_resolve_addr", cm_call::resolve_address, id, id, from,
                   to, timeout);
}

int rdma_resolve_route(rdma_cm_id* id, int timeout) {
  return announced(rdma_resolve_route, "rdma_resolve_route", cm_call::resolve_route, id, id,
                   timeout);
}

int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attr, int* mask) {
  return announced(rdma_init_qp_attr, "rdma_init_qp_attr", cm_call::init_queue_pair, id, id, attr,
                   mask);
}

int rdma_connect(rdma_cm_id* id, rdma_conn_param* p) {
  return announced(rdma_connect, "rdma_connect", cm_call::connect, id, id, p);
}

int rdma_accept(rdma_cm_id* id, rdma_conn_param* p) {
  return announced(rdma_accept, "rdma_accept", cm_call::accept, id, id, p);
}

int rdma_establish(rdma_cm_id* id) {
  return announced(rdma_establish, "rdma_establish", cm_call::establish, id, id);
}
}
