// SPDX-License-Identifier: BSL-1.0
// ibv_get_device_list(3), ibv_open_device(3), ibv_query_*(3): soft0, and the real devices behind
// it. A program that takes the first device has that of rdma_cm.
#include "device/in_force.hpp"
#include "device/limits.hpp"
#include "device/objects.hpp"
#include "engine/of_process.hpp"
#include "verbs/functions.hpp"
#include "verbs/guid.hpp"
#include "verbs/next.hpp"
#include "wire/pairing.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <net/if.h>
#include <new>
#include <unordered_map>

#undef ibv_query_port

using namespace soft;

namespace soft {
namespace {

// Lists that the program has, and the real list of each.
struct given_lists {
  std::mutex mutex;
  std::unordered_map<ibv_device**, ibv_device**> all;
};

constinit thread_local bool soft0_is_hidden = false;

void fill(ibv_device_attr& a) {
  const personality& p = habits();
  a = {};
  std::strcpy(a.fw_ver, "1");
  a.node_guid = a.sys_image_guid = guid();
  a.max_mr_size = ~0ull;
  a.page_size_cap = 0xfffff000;
  a.vendor_id = p.vendor;
  a.vendor_part_id = p.part;
  a.max_qp = limits::queue_pairs;
  a.max_qp_wr = limits::work_requests;
  a.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID |
                       IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  if (p.window_flags)
    a.device_cap_flags |= IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  // One limit for both, as the kernel reports it.
  a.max_sge = static_cast<int>(std::min(p.send_elements, p.receive_elements));
  a.max_sge_rd = static_cast<int>(p.read_elements);
  a.max_cq = limits::completion_queues;
  a.max_cqe = limits::completions;
  a.max_mr = limits::regions / 2;
  a.max_mw = p.windows;
  a.max_pd = limits::domains;
  a.max_qp_rd_atom = a.max_qp_init_rd_atom = static_cast<int>(p.reads);
  a.max_res_rd_atom = 1 << 20;
  a.atomic_cap = p.atomics;
  a.max_ah = 1 << 16;
  if (p.shared_receives) {
    a.max_srq = limits::shared_receive_queues;
    a.max_srq_wr = limits::work_requests;
    a.max_srq_sge = static_cast<int>(p.receive_elements);
  }
  a.max_pkeys = limits::partitions;
  a.phys_port_cnt = 1;
}

// The largest MTU that the personality's datagrams fill.
ibv_mtu active_mtu() {
  int mtu = IBV_MTU_4096;
  while (mtu > IBV_MTU_256 && habits().datagram_bytes < 128u << mtu)
    --mtu;
  return static_cast<ibv_mtu>(mtu);
}

int query_port(ibv_context*, std::uint8_t port, ibv_port_attr* to, std::size_t bytes) {
  if (port != 1)
    return EINVAL;
  ibv_port_attr a{};
  a.state = IBV_PORT_ACTIVE;
  a.max_mtu = IBV_MTU_4096;
  a.active_mtu = active_mtu();
  a.gid_tbl_len = limits::addresses;
  a.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  a.max_msg_sz = habits().message_bytes;
  if (habits().grh_required)
    a.flags |= IBV_QPF_GRH_REQUIRED;
  a.pkey_tbl_len = limits::partitions;
  a.active_width = 2; // 4 lanes
  a.active_speed = 32;
  a.phys_state = 5; // link up
  a.link_layer = habits().infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  a.lid = habits().infiniband ? 1 : 0;
  std::memset(to, 0, bytes);
  std::memcpy(to, &a, std::min(bytes, sizeof(a)));
  return 0;
}

// Memory that is registered on demand serves any operation.
ibv_odp_caps on_demand() {
  const personality& p = habits();
  const std::uint32_t datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
                                  (p.shared_receives ? IBV_ODP_SUPPORT_SRQ_RECV : 0);
  const std::uint32_t atomics = p.atomics != IBV_ATOMIC_NONE ? IBV_ODP_SUPPORT_ATOMIC : 0;
  const std::uint32_t unreliable = datagrams | IBV_ODP_SUPPORT_WRITE;
  return {IBV_ODP_SUPPORT, {unreliable | IBV_ODP_SUPPORT_READ | atomics, unreliable, datagrams}};
}

int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* to,
                    std::size_t bytes) {
  ibv_device_attr_ex a{};
  fill(a.orig_attr);
  a.phys_port_cnt_ex = 1;
  if (habits().on_demand)
    a.odp_caps = on_demand();
  std::memset(to, 0, bytes);
  std::memcpy(to, &a, std::min(bytes, sizeof(a)));
  return 0;
}

bool gid_at(unsigned index, ibv_gid_entry& to) {
  const auto all = gids();
  if (index >= all.size())
    return false;
  to = {};
  to.gid = all[index].gid;
  to.gid_index = index;
  to.port_num = 1;
  to.gid_type = IBV_GID_TYPE_ROCE_V2;
  to.ndev_ifindex = all[index].interface;
  return true;
}

} // namespace

only_real_devices::only_real_devices() noexcept { soft0_is_hidden = true; }
only_real_devices::~only_real_devices() { soft0_is_hidden = false; }

} // namespace soft

SOFT_EXPORT ibv_device** ibv_get_device_list(int* count) {
  int real_count = 0;
  auto* const list = SOFT_NEXT(ibv_get_device_list);
  ibv_device** const real =
      list == nullptr ? nullptr
                      : list(&real_count); // nullptr: this machine has no devices, or no memory
  auto* const made = static_cast<ibv_device**>(
      std::calloc(static_cast<std::size_t>(real_count) + 2, sizeof(ibv_device*)));
  if (made == nullptr) {
    if (real != nullptr)
      SOFT_NEXT(ibv_free_device_list)(real);
    errno = ENOMEM;
    return nullptr;
  }
  int made_count = 0;
  if (!soft0_is_hidden)
    made[made_count++] = &device();
  std::copy_n(real, real_count, made + made_count);
  made_count += real_count;
  {
    auto& lists = of_process<given_lists>();
    std::lock_guard lock(lists.mutex);
    lists.all[made] = real;
  }
  if (count != nullptr)
    *count = made_count;
  return made;
}

SOFT_EXPORT void ibv_free_device_list(ibv_device** list) {
  ibv_device** real = nullptr;
  {
    auto& lists = of_process<given_lists>();
    std::lock_guard lock(lists.mutex);
    const auto found = lists.all.find(list);
    if (found == lists.all.end())
      return;
    real = found->second;
    lists.all.erase(found);
  }
  if (real != nullptr)
    SOFT_NEXT(ibv_free_device_list)(real);
  std::free(static_cast<void*>(list));
}

SOFT_EXPORT const char* ibv_get_device_name(ibv_device* d) { return d->name; }
SOFT_EXPORT __be64 ibv_get_device_guid(ibv_device* d) {
  return d == &device() ? guid() : SOFT_NEXT(ibv_get_device_guid)(d);
}
SOFT_EXPORT int ibv_get_device_index(ibv_device* d) {
  return d == &device() ? 0xffff : SOFT_NEXT(ibv_get_device_index)(d);
}

namespace {

// nullptr: errno.
ibv_context* make_context() {
  if (const int error = load_settings()) {
    errno = error;
    return nullptr;
  }
  auto made = std::unique_ptr<device_context>(new (std::nothrow) device_context);
  if (!made) {
    errno = ENOMEM;
    return nullptr;
  }
  if (made->events.fd() < 0)
    return nullptr; // errno of eventfd(2)
  verbs_context& v = *made;
  v.sz = sizeof(v);
  v.query_port = query_port;
  v.query_device_ex = query_device_ex;
  fill_memory_functions(v);
  fill_queue_functions(v);
  fill_queue_pair_functions(v);
  v.context.device = &device();
  v.context.cmd_fd = -1;
  v.context.async_fd = made->events.fd();
  v.context.num_comp_vectors = static_cast<int>(habits().vectors);
  pthread_mutex_init(&v.context.mutex, nullptr);
  v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  return made.release()->base();
}

} // namespace

SOFT_EXPORT ibv_context* ibv_open_device(ibv_device* d) {
  if (d != &device())
    return SOFT_NEXT(ibv_open_device)(d);
  {
    // The engine and its address are there as long as the process, from its first context on.
    engine& e = engine::get();
    const engine::lock_guard lock(e);
    if (const int error = e.start()) {
      errno = error;
      return nullptr;
    }
    if (!prepare_numbers())
      return nullptr;
  }
  return make_context();
}

// Objects that the program has not destroyed stay, and their context with them
// (ibv_close_device(3)).
SOFT_EXPORT int ibv_close_device(ibv_context* c) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_close_device)(c);
  device_context& own = device_context::of(c);
  if (own.objects == 0)
    delete &own;
  else
    own.events.close();
  return 0;
}

SOFT_EXPORT int ibv_query_device(ibv_context* c, ibv_device_attr* a) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_query_device)(c, a);
  fill(*a);
  return 0;
}

// Programs that were compiled with an older header; theirs ends before port_cap_flags2.
SOFT_EXPORT int ibv_query_port(ibv_context* c, std::uint8_t port, _compat_ibv_port_attr* a) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_query_port)(c, port, a);
  return query_port(c, port, reinterpret_cast<ibv_port_attr*>(a),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

SOFT_EXPORT int ibv_query_gid(ibv_context* c, std::uint8_t port, int index, ibv_gid* gid) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_query_gid)(c, port, index, gid);
  ibv_gid_entry e{};
  if (port != 1 || index < 0 || index >= limits::addresses) {
    errno = EINVAL;
    return -1;
  }
  gid_at(static_cast<unsigned>(index), e);
  *gid = e.gid;
  return 0;
}

SOFT_EXPORT int _ibv_query_gid_ex(ibv_context* c, std::uint32_t port, std::uint32_t index,
                                  ibv_gid_entry* to, std::uint32_t flags, std::size_t bytes) {
  if (!is_soft(c))
    return SOFT_NEXT(_ibv_query_gid_ex)(c, port, index, to, flags, bytes);
  if (port != 1 || index >= limits::addresses || flags != 0)
    return EINVAL;
  ibv_gid_entry e{};
  if (!gid_at(index, e) || is_zero(e.gid))
    return ENODATA;
  std::memcpy(to, &e, std::min(bytes, sizeof(e)));
  return 0;
}

SOFT_EXPORT ssize_t _ibv_query_gid_table(ibv_context* c, ibv_gid_entry* to, std::size_t most,
                                         std::uint32_t flags, std::size_t bytes) {
  if (!is_soft(c))
    return SOFT_NEXT(_ibv_query_gid_table)(c, to, most, flags, bytes);
  if (flags != 0)
    return -EINVAL;
  std::size_t n = 0;
  ibv_gid_entry e{};
  for (unsigned i = 0; gid_at(i, e) && n != most; ++i)
    if (!is_zero(e.gid))
      std::memcpy(reinterpret_cast<std::byte*>(to) + bytes * n++, &e, std::min(bytes, sizeof(e)));
  return static_cast<ssize_t>(n);
}

SOFT_EXPORT int ibv_query_pkey(ibv_context* c, std::uint8_t port, int index, __be16* key) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_query_pkey)(c, port, index, key);
  if (port != 1 || index < 0 || index >= limits::partitions) {
    errno = EINVAL;
    return -1;
  }
  *key = 0xffff;
  return 0;
}

SOFT_EXPORT int ibv_get_pkey_index(ibv_context* c, std::uint8_t port, __be16 key) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_get_pkey_index)(c, port, key);
  return port == 1 && key == 0xffff ? 0 : -1;
}

// Not in a header: ibv_devinfo(1) calls it. The type is 0 for RoCE v1, 1 for RoCE v2.
SOFT_EXPORT int ibv_query_gid_type(ibv_context* c, std::uint8_t port, unsigned index, int* type);
SOFT_EXPORT int ibv_query_gid_type(ibv_context* c, std::uint8_t port, unsigned index, int* type) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_query_gid_type)(c, port, index, type);
  *type = 1;
  return 0;
}
