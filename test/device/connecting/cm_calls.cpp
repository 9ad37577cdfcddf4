// SPDX-License-Identifier: BSL-1.0
#include "device/connecting/cm_calls.hpp"

#include <cerrno>
#include <chrono>
#include <dlfcn.h>
#include <thread>

test::hook<int(test::cm_call, const rdma_cm_id*)> test::before_cm_call;
test::hook<void(test::cm_call, rdma_conn_param&)> test::edit_parameters;
test::hook<void()> test::after_connecting;
test::hook<void(const rdma_cm_id*)> test::before_destruction;
test::hook<int()> test::before_reading;
test::hook<void(rdma_cm_event&)> test::edit_event;
test::hook<void(rdma_cm_event_type)> test::after_acknowledgement;
std::atomic<int> test::events_read{0};

test::hooks::~hooks() {
  before_cm_call = nullptr;
  edit_parameters = nullptr;
  after_connecting = nullptr;
  before_destruction = nullptr;
  before_reading = nullptr;
  edit_event = nullptr;
  after_acknowledgement = nullptr;
}

namespace {

using test::cm_call;

/// Calls librdmacm's own function after notifying the test, unless the test makes the call fail.
template <class Function, class... Arguments>
int announced(Function*, const char* name, cm_call call, const rdma_cm_id* id,
              Arguments... arguments) {
  if (const int error = test::before_cm_call(call, id)) {
    errno = error;
    return -1;
  }
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name))(arguments...);
}

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

rdma_conn_param edited(cm_call call, const rdma_conn_param& given) {
  rdma_conn_param result = given;
  test::edit_parameters(call, result);
  return result;
}

} // namespace

bool test::wait_until_given_up(rdma_cm_id* id) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    int mask = 0;
    if (real(rdma_init_qp_attr, "rdma_init_qp_attr")(id, &attr, &mask) != 0)
      return errno == EINVAL;
    attr.qp_state = IBV_QPS_RTS;
    if (real(rdma_init_qp_attr, "rdma_init_qp_attr")(id, &attr, &mask) != 0 && errno == EINVAL)
      return true;
    if (std::chrono::steady_clock::now() > end)
      return false;
    std::this_thread::yield();
  }
}

extern "C" {

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                   rdma_port_space ps) {
  return announced(rdma_create_id, "rdma_create_id", cm_call::create_id, nullptr, channel, id,
                   context, ps);
}

int rdma_destroy_id(rdma_cm_id* id) {
  test::before_destruction(id);
  return real(rdma_destroy_id, "rdma_destroy_id")(id);
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
  rdma_conn_param told = edited(cm_call::connect, *p);
  const int result = announced(rdma_connect, "rdma_connect", cm_call::connect, id, id, &told);
  if (result == 0)
    test::after_connecting();
  return result;
}

int rdma_accept(rdma_cm_id* id, rdma_conn_param* p) {
  rdma_conn_param told = edited(cm_call::accept, *p);
  return announced(rdma_accept, "rdma_accept", cm_call::accept, id, id, &told);
}

int rdma_establish(rdma_cm_id* id) {
  return announced(rdma_establish, "rdma_establish", cm_call::establish, id, id);
}

int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel) {
  return announced(rdma_migrate_id, "rdma_migrate_id", cm_call::migrate, id, id, channel);
}

int rdma_bind_addr(rdma_cm_id* id, sockaddr* address) {
  return announced(rdma_bind_addr, "rdma_bind_addr", cm_call::bind_address, id, id, address);
}

int rdma_listen(rdma_cm_id* id, int backlog) {
  return announced(rdma_listen, "rdma_listen", cm_call::listen, id, id, backlog);
}

int rdma_notify(rdma_cm_id* id, ibv_event_type event) {
  return announced(rdma_notify, "rdma_notify", cm_call::notify, id, id, event);
}

int rdma_reject(rdma_cm_id* id, const void* data, std::uint8_t size) {
  return announced(rdma_reject, "rdma_reject", cm_call::reject, id, id, data, size);
}

int rdma_disconnect(rdma_cm_id* id) {
  return announced(rdma_disconnect, "rdma_disconnect", cm_call::disconnect, id, id);
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
  if (const int error = test::before_reading()) {
    errno = error;
    return -1;
  }
  const int result = real(rdma_get_cm_event, "rdma_get_cm_event")(channel, event);
  test::events_read += result == 0 ? 1 : 0;
  if (result == 0)
    test::edit_event(**event);
  return result;
}

int rdma_ack_cm_event(rdma_cm_event* event) {
  const rdma_cm_event_type type = event->event;
  const int result = real(rdma_ack_cm_event, "rdma_ack_cm_event")(event);
  test::after_acknowledgement(type);
  return result;
}
}
