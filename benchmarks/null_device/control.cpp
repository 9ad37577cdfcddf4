// SPDX-License-Identifier: BSL-1.0
// libibverbs' functions for devices and objects. A function that is not defined here is libibverbs'
// own.
#include "null_device.hpp"
#include "objects.hpp"

#include <arpa/inet.h>
#include <endian.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace null_device;

namespace {

constexpr std::uint64_t guid = 0x0200'00ff'fe00'0001;

template <class T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

ibv_device* the_device() {
  static ibv_device* const device = [] {
    static ibv_device d{};
    d.node_type = IBV_NODE_CA;
    d.transport_type = IBV_TRANSPORT_IB;
    std::strcpy(d.name, "null0");
    std::strcpy(d.dev_name, "null0");
    return &d;
  }();
  return device;
}

int fill_port(ibv_context*, std::uint8_t port, ibv_port_attr* out, std::size_t size) {
  if (port != 1)
    return EINVAL;
  ibv_port_attr a{};
  a.state = IBV_PORT_ACTIVE;
  a.max_mtu = a.active_mtu = IBV_MTU_4096;
  a.gid_tbl_len = 1;
  a.max_msg_sz = 1u << 30;
  a.pkey_tbl_len = 1;
  a.active_width = 2;
  a.active_speed = 32;
  a.phys_state = 5;
  a.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memset(out, 0, size);
  std::memcpy(out, &a, std::min(size, sizeof a));
  return 0;
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  static std::uint32_t key = 0x8000'0000;
  auto* mw = new ibv_mw{};
  mw->context = pd->context;
  mw->pd = pd;
  mw->type = type;
  mw->rkey = key += 0x100;
  return mw;
}
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }
int dealloc_mw(ibv_mw* mw) {
  delete mw;
  return 0;
}

ibv_gid the_gid() {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  const std::uint32_t address = htonl(0xc0000201); // 192.0.2.1, from the block for documentation
  std::memcpy(gid.raw + 12, &address, sizeof address);
  return gid;
}

std::unordered_map<std::uint32_t, null_device::queue_pair*>& queue_pairs() {
  static std::unordered_map<std::uint32_t, null_device::queue_pair*> all;
  return all;
}

} // namespace

queue_pair* null_device::find(std::uint32_t number) {
  const auto found = queue_pairs().find(number);
  return found == queue_pairs().end() ? nullptr : found->second;
}

// Devices

NULL_DEVICE_EXPORT ibv_device** ibv_get_device_list(int* n) {
  auto** list = static_cast<ibv_device**>(std::calloc(2, sizeof(ibv_device*)));
  if (!list)
    return nullptr;
  list[0] = the_device();
  if (n)
    *n = 1;
  return list;
}
NULL_DEVICE_EXPORT void ibv_free_device_list(ibv_device** list) { std::free(list); }
NULL_DEVICE_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }
NULL_DEVICE_EXPORT int ibv_get_device_index(ibv_device*) { return 0; }
NULL_DEVICE_EXPORT __be64 ibv_get_device_guid(ibv_device*) { return htobe64(guid); }

NULL_DEVICE_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  auto* v = new verbs_context{};
  v->sz = sizeof *v;
  v->query_port = fill_port;
  ibv_context& c = v->context;
  c.device = device;
  c.abi_compat = __VERBS_ABI_IS_EXTENDED;
  c.cmd_fd = -1;
  c.async_fd = ::eventfd(0, EFD_CLOEXEC);
  c.num_comp_vectors = 1;
  pthread_mutex_init(&c.mutex, nullptr);
  c.ops.post_send = post_send;
  c.ops.post_recv = post_recv;
  c.ops.post_srq_recv = post_srq_recv;
  c.ops.poll_cq = poll_cq;
  c.ops.req_notify_cq = req_notify_cq;
  c.ops.alloc_mw = alloc_mw;
  c.ops.bind_mw = bind_mw;
  c.ops.dealloc_mw = dealloc_mw;
  return &c;
}
NULL_DEVICE_EXPORT int ibv_close_device(ibv_context* context) {
  ::close(context->async_fd);
  pthread_mutex_destroy(&context->mutex);
  delete verbs_get_ctx(context);
  return 0;
}

NULL_DEVICE_EXPORT int ibv_query_device(ibv_context*, ibv_device_attr* a) {
  *a = {};
  a->node_guid = a->sys_image_guid = htobe64(guid);
  a->max_mr_size = std::uint64_t{1} << 40;
  a->page_size_cap = 4096;
  a->max_qp = 1 << 16;
  a->max_qp_wr = max_depth;
  a->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                        IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_RC_RNR_NAK_GEN;
  a->max_sge = a->max_sge_rd = max_sge;
  a->max_cq = 1 << 16;
  a->max_cqe = 1 << 20;
  a->max_mr = a->max_mw = 1 << 20;
  a->max_pd = 1 << 16;
  a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
  a->max_res_rd_atom = 1 << 20;
  a->atomic_cap = IBV_ATOMIC_HCA;
  a->max_ah = 1 << 16;
  a->max_srq = 1 << 16;
  a->max_srq_wr = max_depth;
  a->max_srq_sge = max_sge;
  a->max_pkeys = 1;
  a->phys_port_cnt = 1;
  return 0;
}

NULL_DEVICE_EXPORT int ibv_query_gid(ibv_context*, std::uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *gid = the_gid();
  return 0;
}
NULL_DEVICE_EXPORT int _ibv_query_gid_ex(ibv_context*, std::uint32_t port, std::uint32_t index,
                                         ibv_gid_entry* entry, std::uint32_t, std::size_t size) {
  if (port != 1 || index != 0)
    return EINVAL;
  const ibv_gid_entry e{the_gid(), 0, 1, IBV_GID_TYPE_ROCE_V2, 0};
  std::memcpy(entry, &e, std::min(size, sizeof e));
  return 0;
}
NULL_DEVICE_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                                std::size_t n, std::uint32_t flags,
                                                std::size_t size) {
  return n && !_ibv_query_gid_ex(context, 1, 0, entries, flags, size) ? 1 : 0;
}
NULL_DEVICE_EXPORT int ibv_query_pkey(ibv_context*, std::uint8_t, int, __be16* key) {
  *key = 0xffff;
  return 0;
}

NULL_DEVICE_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event*) {
  std::uint64_t value; // never written: a read blocks or fails, depending on the descriptor
  [[maybe_unused]] const auto n = ::read(context->async_fd, &value, sizeof value);
  return -1;
}
NULL_DEVICE_EXPORT void ibv_ack_async_event(ibv_async_event*) {}

// Protection domains and memory

NULL_DEVICE_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = new ibv_pd{};
  pd->context = context;
  return pd;
}
NULL_DEVICE_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

NULL_DEVICE_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length,
                                            std::uint64_t, unsigned) {
  static std::uint32_t key = 0;
  ++counts().registrations;
  auto* mr = new ibv_mr{};
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = mr->rkey = key += 0x100;
  return mr;
}
NULL_DEVICE_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int) {
  return ibv_reg_mr_iova2(pd, address, length, 0, 0);
}
NULL_DEVICE_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length,
                                           std::uint64_t, int) {
  return ibv_reg_mr_iova2(pd, address, length, 0, 0);
}
NULL_DEVICE_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t,
                                             int, int) {
  return refuse<ibv_mr>(EOPNOTSUPP);
}
NULL_DEVICE_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return 0;
}

// Completion queues

NULL_DEVICE_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* c = new channel{};
  c->context = context;
  c->fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return c;
}
NULL_DEVICE_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* c) {
  if (c->refcnt)
    return EBUSY;
  ::close(c->fd);
  delete static_cast<channel*>(c);
  return 0;
}
NULL_DEVICE_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                         ibv_comp_channel* c, int) {
  if (cqe < 1)
    return refuse<ibv_cq>(EINVAL);
  auto* cq = new completion_queue{};
  const auto size = ring_size(static_cast<std::uint32_t>(cqe));
  cq->ring = std::make_unique<completion[]>(size);
  cq->mask = size - 1;
  cq->context = context;
  cq->channel = c;
  cq->cq_context = cq_context;
  cq->cqe = static_cast<int>(size);
  if (c)
    ++c->refcnt;
  return cq;
}
NULL_DEVICE_EXPORT int ibv_resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }
NULL_DEVICE_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  if (cq->channel) {
    auto& pending = static_cast<channel*>(cq->channel)->pending;
    for (auto i = std::find(pending.begin(), pending.end(), cq); i != pending.end();
         i = std::find(pending.begin(), pending.end(), cq)) {
      std::uint64_t value;
      [[maybe_unused]] const auto n = ::read(cq->channel->fd, &value, sizeof value);
      pending.erase(i);
    }
    --cq->channel->refcnt;
  }
  delete static_cast<completion_queue*>(cq);
  return 0;
}
NULL_DEVICE_EXPORT int ibv_get_cq_event(ibv_comp_channel* c, ibv_cq** cq, void** cq_context) {
  std::uint64_t value;
  if (::read(c->fd, &value, sizeof value) != sizeof value)
    return -1;
  auto& pending = static_cast<channel*>(c)->pending;
  *cq = pending.front();
  *cq_context = (*cq)->cq_context;
  pending.pop_front();
  ++counts().channel_events;
  return 0;
}
NULL_DEVICE_EXPORT void ibv_ack_cq_events(ibv_cq*, unsigned) {}

// Queue pairs

NULL_DEVICE_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  auto* srq = new ibv_srq{};
  srq->context = pd->context;
  srq->pd = pd;
  srq->srq_context = attr->srq_context;
  return srq;
}
NULL_DEVICE_EXPORT int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) { return 0; }
NULL_DEVICE_EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  delete srq;
  return 0;
}

NULL_DEVICE_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  static std::uint32_t number = 0x10;
  auto& cap = attr->cap;
  if (cap.max_send_wr > max_depth || cap.max_recv_wr > max_depth || cap.max_send_sge > max_sge ||
      cap.max_recv_sge > max_sge || cap.max_inline_data > max_inline)
    return refuse<ibv_qp>(EINVAL);
  cap.max_send_wr = ring_size(cap.max_send_wr);
  cap.max_recv_wr = ring_size(cap.max_recv_wr);
  cap.max_send_sge = cap.max_recv_sge = max_sge;
  cap.max_inline_data = max_inline;
  auto* qp = new queue_pair{};
  qp->context = pd->context;
  qp->qp_context = attr->qp_context;
  qp->pd = pd;
  qp->send_cq = attr->send_cq;
  qp->recv_cq = attr->recv_cq;
  qp->srq = attr->srq;
  qp->qp_num = number++;
  qp->qp_type = attr->qp_type;
  qp->all_signaled = attr->sq_sig_all != 0;
  qp->send_ring = std::make_unique<descriptor[]>(cap.max_send_wr);
  qp->send_mask = cap.max_send_wr - 1;
  qp->receive_ring = std::make_unique<queue_pair::receive[]>(cap.max_recv_wr);
  qp->receive_mask = cap.max_recv_wr - 1;
  qp->init = *attr;
  queue_pairs().emplace(qp->qp_num, qp);
  return qp;
}
NULL_DEVICE_EXPORT int ibv_modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  auto& qp = static_cast<queue_pair&>(*handle);
  if (mask & ~IBV_QP_STATE)
    qp.attributes = *attr;
  if (mask & IBV_QP_DEST_QPN && attr->dest_qp_num != qp.qp_num)
    qp.peer = find(attr->dest_qp_num);
  if (mask & IBV_QP_STATE) {
    qp.state = attr->qp_state;
    if (qp.state == IBV_QPS_ERR)
      flush_receives(qp);
    else if (qp.state == IBV_QPS_RESET)
      qp.receive_head = qp.receive_tail;
  }
  return 0;
}
NULL_DEVICE_EXPORT int ibv_query_qp(ibv_qp* handle, ibv_qp_attr* attr, int,
                                    ibv_qp_init_attr* init) {
  auto& qp = static_cast<queue_pair&>(*handle);
  *attr = qp.attributes;
  attr->qp_state = attr->cur_qp_state = qp.state;
  attr->cap = qp.init.cap;
  *init = qp.init;
  return 0;
}
NULL_DEVICE_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  queue_pairs().erase(qp->qp_num);
  for (const auto& [number, other] : queue_pairs())
    if (other->peer == qp)
      other->peer = nullptr;
  delete static_cast<queue_pair*>(qp);
  return 0;
}

NULL_DEVICE_EXPORT int ibv_fork_init() { return 0; }
