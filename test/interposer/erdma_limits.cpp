// SPDX-License-Identifier: BSL-1.0
//
// The limits of erdma on another device, in a library to preload. erdma speaks iWARP, as siw does,
// and the software device with the limits of erdma (soft) does not. So the library's code for iWARP
// runs with these limits on siw.
//
// The limits are those of the kernel's driver and of rdma-core's provider, and so are the refusals
// (k/erdma/erdma_verbs.h and .c, p/erdma/erdma_verbs.c). A device that has less keeps its own
// limit.
#include "erdma_limits.hpp"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <unordered_map>

namespace {

constexpr int send_elements = 6, receive_elements = 1, read_elements = 1;
constexpr std::uint32_t inline_bytes = 96; // of a request
constexpr std::uint32_t depth = 8192;      // of a queue
constexpr int reads = 128;                 // that a queue pair has outstanding

std::atomic<unsigned> refused_queue_pairs, refused_posts;

template <class Function>
Function* next(const char* name) {
  void* const found = ::dlvsym(RTLD_NEXT, name, "IBVERBS_1.1");
  if (found == nullptr) {
    std::fprintf(stderr, "erdma_limits: %s is not in a shared libibverbs\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// The functions of each opened device. A context that is opened later may have the same address.
std::mutex devices_mutex;
std::unordered_map<ibv_context*, ibv_context_ops> devices;

ibv_context_ops device_of(ibv_context* context) {
  const std::lock_guard lock(devices_mutex);
  return devices.at(context);
}

bool is_refused(const ibv_send_wr& wr) {
  switch (wr.opcode) {
  case IBV_WR_BIND_MW: // the provider knows neither
  case IBV_WR_LOCAL_INV:
    return true;
  case IBV_WR_RDMA_READ:
    return wr.num_sge > read_elements;
  default:
    break;
  }
  const auto add = [](std::uint64_t sum, const ibv_sge& e) {
    return sum + e.length;
  };
  return wr.num_sge > send_elements || ((wr.send_flags & IBV_SEND_INLINE) != 0 &&
                                        std::accumulate(wr.sg_list, wr.sg_list + wr.num_sge,
                                                        std::uint64_t{}, add) > inline_bytes);
}
bool is_refused(const ibv_recv_wr& wr) { return wr.num_sge > receive_elements; }

/// Posts the requests before the first refused one.
template <class Request, class Post>
int post_until_refused(Request* wr, Request** bad_wr, Post real) {
  Request *last = nullptr, *refused = wr;
  for (; refused != nullptr && !is_refused(*refused); refused = refused->next)
    last = refused;
  if (refused == nullptr)
    return real(wr, bad_wr);
  ++refused_posts;
  int e = 0;
  if (last != nullptr) {
    last->next = nullptr;
    e = real(wr, bad_wr);
    last->next = refused;
  }
  if (e != 0)
    return e;
  *bad_wr = refused;
  return EINVAL;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  return post_until_refused(wr, bad_wr, [qp](ibv_send_wr* some, ibv_send_wr** bad) {
    return device_of(qp->context).post_send(qp, some, bad);
  });
}
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return post_until_refused(wr, bad_wr, [qp](ibv_recv_wr* some, ibv_recv_wr** bad) {
    return device_of(qp->context).post_recv(qp, some, bad);
  });
}

template <class Object>
Object* refuse(int error) {
  errno = error;
  return nullptr;
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT erdma_refusals get_erdma_refusals() noexcept { return {refused_queue_pairs, refused_posts}; }

EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  static auto* const real = next<decltype(ibv_open_device)>("ibv_open_device");
  ibv_context* const context = real(device);
  if (context == nullptr)
    return nullptr;
  {
    const std::lock_guard lock(devices_mutex);
    devices[context] = context->ops;
  }
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.alloc_mw = nullptr; // libibverbs then reports EOPNOTSUPP
  if (verbs_context* const extended = verbs_get_ctx(context))
    extended->create_qp_ex = nullptr; // the same
  return context;
}

// libibverbs reports one number of elements: the smaller one of those to send and to receive.
EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  static auto* const real = next<decltype(ibv_query_device)>("ibv_query_device");
  const int e = real(context, attr);
  if (e != 0)
    return e;
  const auto limit = [](int& value, int most) {
    value = std::min(value, most);
  };
  limit(attr->max_sge, std::min(send_elements, receive_elements));
  limit(attr->max_sge_rd, read_elements);
  limit(attr->max_qp_wr, depth);
  limit(attr->max_qp_rd_atom, reads);
  limit(attr->max_qp_init_rd_atom, reads);
  attr->max_srq = attr->max_srq_wr = attr->max_srq_sge = 0;
  constexpr unsigned windows =
      IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  attr->device_cap_flags &= ~windows;
  return 0;
}

EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  static auto* const real = next<decltype(ibv_create_qp)>("ibv_create_qp");
  const ibv_qp_cap& c = attr->cap;
  if (c.max_send_sge > send_elements || c.max_recv_sge > receive_elements ||
      c.max_inline_data > inline_bytes || c.max_send_wr > depth || c.max_recv_wr > depth ||
      c.max_send_wr == 0 || c.max_recv_wr == 0) {
    ++refused_queue_pairs;
    return refuse<ibv_qp>(EINVAL);
  }
  if (attr->qp_type != IBV_QPT_RC || attr->srq != nullptr)
    return refuse<ibv_qp>(EOPNOTSUPP);
  return real(pd, attr);
}

EXPORT ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) { return refuse<ibv_srq>(EOPNOTSUPP); }
