// SPDX-License-Identifier: BSL-1.0
#include "cm_calls.hpp"

#include <dlfcn.h>

std::function<void(test::cm_call, const rdma_cm_id*)> test::before_cm_call;

namespace {

using test::cm_call;

/// librdmacm's own function, after the test has been told.
template <class Function>
Function* announced(cm_call call, const rdma_cm_id* id, const char* name) {
  if (test::before_cm_call)
    test::before_cm_call(call, id);
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

} // namespace

extern "C" {

int rdma_resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout) {
  return announced<decltype(rdma_resolve_addr)>(cm_call::resolve_address, id,
                                                "rdma_resolve_addr")(id, from, to, timeout);
}

int rdma_resolve_route(rdma_cm_id* id, int timeout) {
  return announced<decltype(rdma_resolve_route)>(cm_call::resolve_route, id,
                                                 "rdma_resolve_route")(id, timeout);
}

int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attr, int* mask) {
  return announced<decltype(rdma_init_qp_attr)>(cm_call::init_queue_pair, id,
                                                "rdma_init_qp_attr")(id, attr, mask);
}

int rdma_connect(rdma_cm_id* id, rdma_conn_param* p) {
  return announced<decltype(rdma_connect)>(cm_call::connect, id, "rdma_connect")(id, p);
}

int rdma_accept(rdma_cm_id* id, rdma_conn_param* p) {
  return announced<decltype(rdma_accept)>(cm_call::accept, id, "rdma_accept")(id, p);
}

int rdma_establish(rdma_cm_id* id) {
  return announced<decltype(rdma_establish)>(cm_call::establish, id, "rdma_establish")(id);
}
}
