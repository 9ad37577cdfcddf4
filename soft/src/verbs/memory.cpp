// SPDX-License-Identifier: BSL-1.0
// Protection domains, registered memory and memory windows.
#include "device/memory.hpp"

#include "device/faults.hpp"
#include "device/queue_pair.hpp"
#include "verbs/functions.hpp"
#include "verbs/next.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <linux/capability.h>
#include <memory>
#include <new>
#include <span>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace soft;

namespace {

constexpr unsigned remote_changes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND |
                           IBV_ACCESS_ON_DEMAND | IBV_ACCESS_RELAXED_ORDERING;

// Whether the process has this memory: 0 or an error number. As pinning does, it makes the pages
// present.
int check_memory(void* address, std::size_t bytes, bool written) {
  if (bytes == 0)
    return 0;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(address) & ~(page - 1);
  const auto last = reinterpret_cast<std::uintptr_t>(address) + bytes;
  if (last < reinterpret_cast<std::uintptr_t>(address) || last > ~page)
    return EINVAL;
#ifdef MADV_POPULATE_WRITE
  constexpr int for_reading = MADV_POPULATE_READ, for_writing = MADV_POPULATE_WRITE;
#else
  constexpr int for_reading = 22, for_writing = 23;
#endif
  if (madvise(reinterpret_cast<void*>(first), last - first, written ? for_writing : for_reading) ==
      0)
    return 0;
  if (errno != EINVAL) // ENOMEM: nothing is mapped there; EFAULT: a page cannot be had
    return errno == ENOMEM ? EFAULT : errno;
  for (std::uintptr_t p = first; p < last; p += page) { // a kernel before 5.14
    unsigned char present = 0;
    if (mincore(reinterpret_cast<void*>(p), 1, &present) != 0)
      return EFAULT;
  }
  return 0;
}

// The memory that is registered. With a device of the kernel it counts as locked: RLIMIT_MEMLOCK.
std::atomic<std::uint64_t> locked{0};
bool may_lock(std::uint64_t bytes) {
  rlimit limit{};
  if (!habits().locks_memory || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY || locked + bytes <= limit.rlim_cur)
    return true;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & 1u << CAP_IPC_LOCK) != 0;
}

// The time that pinning and mapping the memory takes.
void wait_for_registration(std::size_t bytes) {
  const personality& p = habits();
  if (p.register_memory.count() > 0)
    std::this_thread::sleep_for(p.register_memory +
                                std::chrono::nanoseconds(static_cast<long>(
                                    static_cast<double>(bytes) * p.register_byte_ns)));
}

// Whether memory may be registered with these rights, of which `possible` are known: 0 or an error
// number. The kernel asks for the same offset in a page, on both sides (ib_uverbs_reg_mr).
int check_request(ibv_pd* pd, unsigned access, unsigned possible, std::uint64_t offset,
                  std::uint64_t first) {
  const std::uint64_t in_page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) - 1;
  if ((access & ~possible) != 0)
    return (access & ~(possible | IBV_ACCESS_ZERO_BASED)) != 0 ? EINVAL : EOPNOTSUPP;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0 && !habits().on_demand)
    return EOPNOTSUPP;
  if (((access & remote_changes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) ||
      ((offset ^ first) & in_page) != 0)
    return EINVAL;
  return refuse(pd->context, place::reg_mr);
}

// Gives a region, which has its memory, its keys. Returns nullptr and sets errno if none is left.
ibv_mr* enter(std::unique_ptr<region> made, ibv_pd* pd, std::size_t bytes, std::uint64_t first,
              unsigned access) {
  made->context = pd->context;
  made->pd = pd;
  made->length = bytes;
  made->first = first;
  made->access = access;
  const engine::lock_guard lock(engine::get());
  if (!memory_table::get().add(*made)) {
    errno = ENOMEM;
    return nullptr;
  }
  made->handle = made->lkey;
  ++domain::of(pd).objects;
  locked += made->pinned;
  return made.release();
}

ibv_mr* failed(int error) {
  errno = error;
  return nullptr;
}

ibv_mr* reg(ibv_pd* pd, void* address, std::size_t bytes, std::uint64_t first, unsigned access) {
  access &= ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
  if (const int error =
          check_request(pd, access, known, reinterpret_cast<std::uintptr_t>(address), first))
    return failed(error);
  if (const int error = check_memory(address, bytes, (access & IBV_ACCESS_LOCAL_WRITE) != 0))
    return failed(error);
  wait_for_registration(bytes);
  const std::size_t pinned = (access & IBV_ACCESS_ON_DEMAND) != 0 ? 0 : bytes;
  if (!may_lock(pinned))
    return failed(ENOMEM);
  auto made = std::unique_ptr<region>(new (std::nothrow) region{});
  if (!made)
    return failed(ENOMEM);
  made->addr = address;
  made->memory = static_cast<std::byte*>(address);
  made->pinned = pinned;
  return enter(std::move(made), pd, bytes, first, access);
}

// The rights of a dma-buf are those of the kernel (UVERBS_METHOD_REG_DMABUF_MR): no binding of
// windows, and nothing on demand. Its memory is not the process's, and does not count as locked.
ibv_mr* reg_dma_buf(ibv_pd* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t first,
                    int fd, unsigned access) {
  constexpr unsigned possible =
      known & ~static_cast<unsigned>(IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND);
  if (!habits().dma_bufs)
    return failed(EOPNOTSUPP);
  if (const int error = check_request(pd, access, possible, offset, first))
    return failed(error);
  auto made = std::unique_ptr<region>(new (std::nothrow) region{});
  if (!made)
    return failed(ENOMEM);
  if (const int error =
          made->dma_buf.map(fd, offset, bytes, (access & IBV_ACCESS_LOCAL_WRITE) != 0))
    return failed(error);
  wait_for_registration(bytes);
  made->addr = reinterpret_cast<void*>(offset); // as libibverbs has it
  made->memory = made->dma_buf.data();
  return enter(std::move(made), pd, bytes, first, access);
}

} // namespace

SOFT_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* c) {
  if (!is_soft(c))
    return SOFT_NEXT(ibv_alloc_pd)(c);
  if (const int error = refuse_creation(c, place::alloc_pd)) {
    errno = error;
    return nullptr;
  }
  auto* const made = new (std::nothrow) domain{};
  if (made == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  made->context = c;
  ++device_context::of(c).objects;
  return made;
}

SOFT_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  if (!is_soft(pd->context))
    return SOFT_NEXT(ibv_dealloc_pd)(pd);
  if (const int error = refuse_destruction(pd->context, domain::of(pd)))
    return error;
  if (domain::of(pd).objects != 0)
    return EBUSY;
  --device_context::of(pd->context).objects;
  delete &domain::of(pd);
  return 0;
}

SOFT_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int access) {
  return is_soft(pd->context) ? reg(pd, address, bytes, reinterpret_cast<std::uintptr_t>(address),
                                    static_cast<unsigned>(access))
                              : SOFT_NEXT(ibv_reg_mr)(pd, address, bytes, access);
}
SOFT_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t bytes,
                                    std::uint64_t first, int access) {
  return is_soft(pd->context) ? reg(pd, address, bytes, first, static_cast<unsigned>(access))
                              : SOFT_NEXT(ibv_reg_mr_iova)(pd, address, bytes, first, access);
}
SOFT_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t bytes,
                                     std::uint64_t first, unsigned access) {
  return is_soft(pd->context) ? reg(pd, address, bytes, first, access)
                              : SOFT_NEXT(ibv_reg_mr_iova2)(pd, address, bytes, first, access);
}
SOFT_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                                      std::uint64_t first, int fd, int access) {
  if (!is_soft(pd->context))
    return SOFT_NEXT(ibv_reg_dmabuf_mr)(pd, offset, bytes, first, fd, access);
  return reg_dma_buf(pd, offset, bytes, first, fd, static_cast<unsigned>(access));
}
SOFT_EXPORT int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t bytes,
                             int access) {
  if (!is_soft(mr->context))
    return SOFT_NEXT(ibv_rereg_mr)(mr, flags, pd, address, bytes, access);
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
}

SOFT_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  if (!is_soft(mr->context))
    return SOFT_NEXT(ibv_dereg_mr)(mr);
  auto* const r = static_cast<region*>(mr);
  if (const int error = refuse_destruction(mr->context, *r))
    return error;
  {
    const engine::lock_guard lock(engine::get());
    if (r->windows != 0)
      return EBUSY;
    memory_table::get().remove(*r);
  }
  --domain::of(r->pd).objects;
  locked -= r->pinned;
  delete r;
  return 0;
}

namespace soft {
namespace {

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
    errno = EINVAL;
    return nullptr;
  }
  const int none = habits().no_windows;
  if (const int error = none != 0 ? none : refuse_creation(pd->context, place::alloc_mw)) {
    errno = error;
    return nullptr;
  }
  auto made = std::unique_ptr<window>(new (std::nothrow) window{});
  if (!made) {
    errno = ENOMEM;
    return nullptr;
  }
  made->context = pd->context;
  made->pd = pd;
  made->type = type;
  const engine::lock_guard lock(engine::get());
  if (!memory_table::get().add(*made)) {
    errno = ENOMEM;
    return nullptr;
  }
  ++domain::of(pd).objects;
  return made.release();
}

int dealloc_mw(ibv_mw* mw) {
  auto* const w = static_cast<window*>(mw);
  if (const int error = refuse_destruction(mw->context, *w))
    return error;
  {
    const engine::lock_guard lock(engine::get());
    memory_table::get().remove(*w);
  }
  --domain::of(w->pd).objects;
  delete w;
  return 0;
}

// A window of type 1: the device gives the next key.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* how) {
  if (mw->type != IBV_MW_TYPE_1)
    return EINVAL;
  ibv_send_wr wr{};
  wr.wr_id = how->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = how->send_flags;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = how->bind_info;
  ibv_send_wr* bad = nullptr;
  const int error = queue_pair::of(qp).post_send(&wr, &bad, queue_pair::post_time());
  if (error == 0)
    mw->rkey = wr.bind_mw.rkey;
  return error;
}

// Memory that is registered on demand is registered as any other. The advice makes its pages
// present.
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* ranges,
              std::uint32_t count) {
  const bool writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  if (!habits().on_demand || (advice != IBV_ADVISE_MR_ADVICE_PREFETCH &&
                              advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT && !writes))
    return EOPNOTSUPP;
  if ((flags & ~static_cast<std::uint32_t>(IBV_ADVISE_MR_FLAG_FLUSH)) != 0)
    return EINVAL;
  const unsigned access = IBV_ACCESS_ON_DEMAND | (writes ? IBV_ACCESS_LOCAL_WRITE : 0);
  for (const ibv_sge& range : std::span(ranges, count)) {
    spans memory;
    {
      const engine::lock_guard lock(engine::get());
      if (!memory_table::get().resolve(pd, {&range, 1}, access, memory))
        return EFAULT;
    }
    if (memory.count == 0 || advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
      continue;
    if (const int error = check_memory(memory.parts[0].data, memory.parts[0].bytes, writes))
      return error;
  }
  return 0;
}

} // namespace

void fill_memory_functions(verbs_context& v) {
  v.advise_mr = advise_mr;
  v.context.ops.alloc_mw = alloc_mw;
  v.context.ops.dealloc_mw = dealloc_mw;
  v.context.ops.bind_mw = bind_mw;
}

} // namespace soft
