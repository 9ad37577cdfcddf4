// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/flush.hpp>
#include <asio_rdma/memory_region.hpp>

#include "core/device_files.hpp"
#include "verbs/withheld.hpp"

#include <cerrno>
#include <fcntl.h>
#include <mutex>
#include <unistd.h>
#include <utility>
#include <vector>

namespace asio_rdma {

struct protection_domain::impl {
  impl(const device& d, ibv_pd* p, ownership o) : dev(d), pd(p), owns(o) {}
  impl(const impl&) = delete;
  ~impl() {
    if (owns == ownership::take && pd != nullptr)
      ibv_dealloc_pd(pd);
  }

  device dev;
  ibv_pd* pd;
  ownership owns;
};

// The dma-buf of an open region. The views of the region have its key, by which `find` finds the
// dma-buf if the memory of a view needs another key: for the offer of a message, for instance.
struct detail::dma_buf {
  // Registers the bytes from `offset` on. Errors: those of `from_dmabuf`.
  static memory_region register_part(const protection_domain& pd, int descriptor,
                                     std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                                     access rights, error_code& ec);
  // Duplicates the descriptor for an open region. Errors: the system's.
  static void keep(memory_region& region, int descriptor, std::uint64_t offset, error_code& ec);
  // Null if no open region has the view.
  static std::shared_ptr<const dma_buf> find(const ibv_pd& pd, const const_buffer& view);

  dma_buf() noexcept = default;
  dma_buf(const dma_buf&) = delete;
  ~dma_buf();

  const ibv_pd* pd = nullptr;
  const_buffer region;      // with its address in requests, and its key
  std::uint64_t offset = 0; // of the region within the dma-buf
  int descriptor = -1;
};

namespace {

// RFC 5040 lets the responder write the sink of a READ only if the sink is remotely writable.
int registration_access(const device& d, access rights) {
  if (has(rights, access::local_write) && d.type() == transport::iwarp)
    rights = rights | access::remote_write;
  return static_cast<int>(detail::verbs_access(rights));
}

error_code check_rights(const protection_domain& pd, access rights) {
  if (!pd.is_open())
    return asio::error::bad_descriptor;
  const device& d = pd.get_device();
  if ((has(rights, access::on_demand) && !d.has_on_demand_paging()) ||
      (has(rights, access::remote_atomic) && !d.has_atomics()) ||
      (has(rights, access::flush_visible) && !d.has_flush(placement::visible)) ||
      (has(rights, access::flush_persistent) && !d.has_flush(placement::persistent)))
    return asio::error::operation_not_supported;
  return {};
}

// rdma-core 33 has no such function. In a template, its name is looked up by argument at the
// instantiation.
template <class Domain>
ibv_mr* register_dmabuf(Domain* pd, std::uint64_t offset, std::size_t bytes, std::uint64_t iova,
                        int descriptor, int rights) {
  if constexpr (requires { ibv_reg_dmabuf_mr(pd, offset, bytes, iova, descriptor, rights); }) {
    return ibv_reg_dmabuf_mr(pd, offset, bytes, iova, descriptor, rights);
  } else {
    errno = EOPNOTSUPP;
    return nullptr;
  }
}

error_code registration_error(int value) {
  // The kernel returns ENOMEM if the pages would exceed RLIMIT_MEMLOCK (ibv_reg_mr(3)).
  if (value == ENOMEM)
    return detail::locked_memory_error();
  return detail::system_error_code(value);
}

// The dma-bufs of all open regions of the process.
struct registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<const detail::dma_buf>> all;

  static registry& of_process() {
    static registry r;
    return r;
  }
};

} // namespace

memory_region detail::dma_buf::register_part(const protection_domain& pd, int descriptor,
                                             std::uint64_t offset, std::size_t bytes,
                                             std::uint64_t iova, access rights, error_code& ec) {
  memory_region result;
  ec = check_rights(pd, rights);
  if (ec)
    return result;
  result.pd_ = pd;
  result.data_ = reinterpret_cast<void*>(iova);
  result.mr_ = register_dmabuf(pd.native_handle(), offset, bytes, iova, descriptor,
                               registration_access(pd.get_device(), rights));
  if (result.mr_ == nullptr)
    ec = registration_error(errno);
  return result;
}

void detail::dma_buf::keep(memory_region& region, int descriptor, std::uint64_t offset,
                           error_code& ec) {
  const auto made = std::make_shared<dma_buf>();
  made->pd = region.mr_->pd;
  made->region = region.buffer();
  made->offset = offset;
  made->descriptor = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (made->descriptor < 0) {
    ec = system_error_code(errno);
    return;
  }
  registry& r = registry::of_process();
  const std::lock_guard guard(r.mutex);
  std::erase_if(r.all, [](const auto& each) { return each.expired(); });
  r.all.push_back(made);
  region.dma_buf_ = made;
}

std::shared_ptr<const detail::dma_buf> detail::dma_buf::find(const ibv_pd& pd,
                                                             const const_buffer& view) {
  const auto address_of = [](const const_buffer& b) {
    return reinterpret_cast<std::uintptr_t>(b.data());
  };
  registry& r = registry::of_process();
  const std::lock_guard guard(r.mutex);
  // From the last on: a region that is being closed no longer has its key, which a later one may
  // have.
  for (auto each = r.all.rbegin(); each != r.all.rend(); ++each) {
    auto d = each->lock();
    if (d == nullptr || d->pd != &pd || d->region.lkey() != view.lkey())
      continue;
    const std::uint64_t at = address_of(view) - address_of(d->region); // huge if before the region
    if (at <= d->region.size() && view.size() <= d->region.size() - at)
      return d;
  }
  return nullptr;
}

detail::dma_buf::~dma_buf() {
  if (descriptor >= 0)
    ::close(descriptor);
}

unsigned detail::verbs_access(access rights) noexcept {
  unsigned result = 0;
  if (has(rights, access::local_write | access::remote_write | access::remote_atomic))
    result |= IBV_ACCESS_LOCAL_WRITE;
  if (has(rights, access::remote_write))
    result |= IBV_ACCESS_REMOTE_WRITE;
  if (has(rights, access::remote_read))
    result |= IBV_ACCESS_REMOTE_READ;
  if (has(rights, access::remote_atomic))
    result |= IBV_ACCESS_REMOTE_ATOMIC;
  if (has(rights, access::window_bind))
    result |= IBV_ACCESS_MW_BIND;
  if (has(rights, access::relaxed_ordering))
    result |= IBV_ACCESS_RELAXED_ORDERING;
  if (has(rights, access::flush_visible))
    result |= detail::visible_flush_access;
  if (has(rights, access::flush_persistent))
    result |= detail::persistent_flush_access;
  if (has(rights, access::on_demand))
    result |= IBV_ACCESS_ON_DEMAND;
  return result;
}

protection_domain::protection_domain(const device& d, error_code& ec) {
  if (!d.is_open()) {
    ec = asio::error::bad_descriptor;
    return;
  }
  const auto made = std::make_shared<impl>(d, nullptr, ownership::take);
  made->pd = ibv_alloc_pd(d.native_handle());
  ec = made->pd != nullptr ? error_code() : detail::creation_error();
  if (!ec)
    impl_ = made;
}

protection_domain::protection_domain(const device& d) {
  error_code ec;
  *this = protection_domain(d, ec);
  detail::throw_if(ec, "ibv_alloc_pd");
}

protection_domain::protection_domain(const device& d, native_handle_type pd, ownership owns) {
  if (d.is_open() && pd != nullptr)
    impl_ = std::make_shared<impl>(d, pd, owns);
}

protection_domain::native_handle_type protection_domain::native_handle() const noexcept {
  return impl_ ? impl_->pd : nullptr;
}

const device& protection_domain::get_device() const noexcept { return impl_->dev; }

memory_region::memory_region(const protection_domain& pd, void* data, std::size_t bytes,
                             access rights, error_code& ec)
    : pd_(pd) {
  ec = check_rights(pd, rights);
  if (ec)
    return;
  mr_ = ibv_reg_mr(pd.native_handle(), data, bytes,
                   static_cast<unsigned>(registration_access(pd.get_device(), rights)));
  if (mr_ == nullptr)
    ec = registration_error(errno);
  data_ = data;
}

memory_region::memory_region(const protection_domain& pd, void* data, std::size_t bytes,
                             access rights) {
  error_code ec;
  *this = memory_region(pd, data, bytes, rights, ec);
  detail::throw_if(ec, "ibv_reg_mr");
}

memory_region detail::register_exactly(const protection_domain& pd, void* data, std::size_t bytes,
                                       access rights, error_code& ec) {
  ec = check_rights(pd, rights);
  if (ec)
    return {};
  ibv_mr* const mr = ibv_reg_mr(pd.native_handle(), data, bytes, verbs_access(rights));
  if (mr == nullptr)
    ec = registration_error(errno);
  return {pd, mr, ownership::take};
}

memory_region memory_region::from_dmabuf(const protection_domain& pd, int descriptor,
                                         std::uint64_t offset, std::size_t bytes,
                                         std::uint64_t iova, access rights, error_code& ec) {
  memory_region result =
      detail::dma_buf::register_part(pd, descriptor, offset, bytes, iova, rights, ec);
  if (!ec)
    detail::dma_buf::keep(result, descriptor, offset, ec);
  return ec ? memory_region() : std::move(result);
}

memory_region detail::register_view(const protection_domain& pd, const const_buffer& view,
                                    access rights, error_code& ec) {
  void* const data = const_cast<void*>(view.data());
  if (!view.is_device_only())
    return {pd, data, view.size(), rights, ec};
  const auto of = pd.is_open() ? dma_buf::find(*pd.native_handle(), view) : nullptr;
  if (!of) {
    ec = asio::error::invalid_argument;
    return {};
  }
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  const std::uint64_t at = first - reinterpret_cast<std::uintptr_t>(of->region.data());
  return dma_buf::register_part(pd, of->descriptor, of->offset + at, view.size(), first, rights,
                                ec);
}

memory_region::memory_region(const protection_domain& pd, native_handle_type mr, ownership owns)
    : pd_(pd), mr_(mr), data_(mr != nullptr ? mr->addr : nullptr), owns_(owns) {}

memory_region::memory_region(memory_region&& other) noexcept
    : pd_(std::move(other.pd_)),
      mr_(std::exchange(other.mr_, nullptr)),
      data_(other.data_),
      dma_buf_(std::move(other.dma_buf_)),
      owns_(other.owns_) {}

memory_region& memory_region::operator=(memory_region&& other) noexcept {
  if (this != &other) {
    const memory_region old(std::move(*this));
    pd_ = std::move(other.pd_);
    mr_ = std::exchange(other.mr_, nullptr);
    data_ = other.data_;
    dma_buf_ = std::move(other.dma_buf_);
    owns_ = other.owns_;
  }
  return *this;
}

memory_region::~memory_region() {
  error_code ec;
  close(ec);
  if (ec) // no other owner can try again
    detail::withhold_key(std::move(*this));
}

void memory_region::close(error_code& ec) {
  ec.clear();
  if (mr_ != nullptr && owns_ == ownership::take) {
    if (const int e = detail::end_use(pd_.get_device(), &ibv_dereg_mr, mr_)) {
      ec = detail::system_error_code(e);
      return;
    }
  }
  mr_ = nullptr;
  dma_buf_.reset();
}

} // namespace asio_rdma
