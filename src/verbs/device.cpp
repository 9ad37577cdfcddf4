// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/flush.hpp>
#include <asio_rdma/device.hpp>

#include "core/device_files.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/device_siw.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <endian.h>
#include <fcntl.h>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <poll.h>
#include <vector>

namespace asio_rdma {

namespace {

class device_names {
public:
  device_names() : first_(ibv_get_device_list(&size_)) {}
  device_names(const device_names&) = delete;
  ~device_names() {
    if (first_ != nullptr)
      ibv_free_device_list(first_);
  }
  ibv_device** begin() const noexcept { return first_; }
  ibv_device** end() const noexcept { return first_ == nullptr ? nullptr : first_ + size_; }

private:
  int size_ = 0;
  ibv_device** first_;
};

error_code open_error(int value) {
  if (value == EACCES || value == EPERM)
    return error::device_permission;
  return detail::system_error_code(value != 0 ? value : ENODEV);
}

// If libibverbs cannot open a file, it searches for another one, for up to five seconds, and its
// error is that of the search (util/open_cdev.c of rdma-core). So the file is tried before.
ibv_context* open_context(ibv_device* d, error_code& ec) {
  const std::string file = d->dev_name;
  ec.clear();
  if (file.starts_with("uverbs")) // a device of the kernel
    ec = detail::file_error({}, file, {});
  ibv_context* const result = ec ? nullptr : ibv_open_device(d);
  if (result == nullptr && !ec)
    ec = open_error(errno);
  return result;
}

transport transport_of(const ibv_device& d) noexcept {
  switch (d.transport_type) {
  case IBV_TRANSPORT_IB:
    return transport::infiniband;
  case IBV_TRANSPORT_IWARP:
    return transport::iwarp;
  default:
    return transport::other;
  }
}

// A driver may report windows that its library cannot allocate: bnxt_re's library has no verb for
// them (providers/bnxt_re/main.c), irdma's driver outside the kernel's tree has none at all.
bool makes_windows(ibv_context* context, const ibv_device_attr& attributes) {
  constexpr unsigned type_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  if (attributes.max_mw <= 0 || (attributes.device_cap_flags & type_2) == 0)
    return false;
  ibv_pd* const pd = ibv_alloc_pd(context);
  if (pd == nullptr)
    return false;
  ibv_mw* const window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  if (window != nullptr)
    ibv_dealloc_mw(window);
  ibv_dealloc_pd(pd);
  return window != nullptr;
}

bool pages_connections(const ibv_odp_caps& caps) {
  constexpr std::uint32_t all =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  return (caps.general_caps & IBV_ODP_SUPPORT) != 0 &&
         (caps.per_transport_caps.rc_odp_caps & all) == all;
}

placement flushes(const ibv_device_attr_ex& a) {
  placement result{};
  if (detail::is_flush_known && (a.device_cap_flags_ex & detail::visible_flush_capability) != 0)
    result = result | placement::visible;
  if (detail::is_flush_known && (a.device_cap_flags_ex & detail::persistent_flush_capability) != 0)
    result = result | placement::persistent;
  return result;
}

// The smallest limit of all ports. A port that reports none does not count.
std::uint32_t longest_message(ibv_context* context, const ibv_device_attr& attributes) {
  std::uint32_t result = std::uint32_t(1) << 31;
  for (std::uint8_t n = 1; n <= attributes.phys_port_cnt; ++n) {
    ibv_port_attr port{};
    if (ibv_query_port(context, n, &port) == 0 && port.max_msg_sz != 0)
      result = std::min(result, port.max_msg_sz);
  }
  return result;
}

bool any_port_active(ibv_context* context) {
  ibv_device_attr attributes{};
  if (ibv_query_device(context, &attributes) != 0)
    return false;
  for (std::uint8_t n = 1; n <= attributes.phys_port_cnt; ++n) {
    ibv_port_attr port{};
    if (ibv_query_port(context, n, &port) == 0 && port.state == IBV_PORT_ACTIVE)
      return true;
  }
  return false;
}

// Adopts a context that was opened here. On failure the context is closed.
device adopt_opened(ibv_context* context, error_code& ec) {
  struct closes {
    void operator()(ibv_context* c) const { ibv_close_device(c); }
  };
  std::unique_ptr<ibv_context, closes> opened(context);
  device result(context, ownership::take, ec);
  if (!ec)
    static_cast<void>(opened.release());
  return result;
}

// The devices of this process, to be found by their contexts.
struct open_contexts {
  std::shared_ptr<device::impl> find(const ibv_context* context) {
    std::erase_if(all, [](const auto& w) { return w.expired(); });
    for (const auto& weak : all)
      if (auto known = weak.lock(); known && known->context == context)
        return known;
    return nullptr;
  }

  // Never destroyed: objects with static lifetime may be devices.
  static open_contexts& of_process() {
    static auto& result = *new open_contexts;
    return result;
  }

  std::mutex mutex;
  std::vector<std::weak_ptr<device::impl>> all;
};

// Of a channel without a completion queue, which has no event. The kernel reports POLLERR, which
// poll(2) always looks for. The project's software device can only make the channel readable.
bool has_ended(const ibv_comp_channel& c, int milliseconds) noexcept {
  pollfd channel{c.fd, POLLIN, 0};
  return poll(&channel, 1, milliseconds) == 1 &&
         (channel.revents & (POLLIN | POLLERR | POLLHUP)) != 0;
}

} // namespace

std::vector<device::description> device::list() {
  std::vector<description> result;
  for (ibv_device* d : device_names()) {
    description entry;
    entry.name = ibv_get_device_name(d);
    entry.type = transport_of(*d);
    entry.guid = be64toh(ibv_get_device_guid(d));
    if (ibv_context* context = open_context(d, entry.open_error)) {
      entry.port_active = any_port_active(context);
      ibv_close_device(context);
    }
    result.push_back(std::move(entry));
  }
  return result;
}

device device::open(std::string_view name, error_code& ec) {
  ec.clear();
  const device_names names;
  const auto found = std::find_if(names.begin(), names.end(),
                                  [name](ibv_device* d) { return name == ibv_get_device_name(d); });
  if (found == names.end()) {
    std::vector<std::string> listed;
    for (ibv_device* d : names)
      listed.emplace_back(ibv_get_device_name(d));
    ec = name.empty()
             ? error_code(error::device_not_found)
             : detail::unlisted_error({}, std::string(name), listed, error::device_not_found);
    return {};
  }
  ibv_context* const context = open_context(*found, ec);
  return context != nullptr ? adopt_opened(context, ec) : device();
}

device device::open(std::string_view name) {
  error_code ec;
  device result = open(name, ec);
  if (ec)
    detail::throw_error(ec, "device::open", std::string(name));
  return result;
}

device::device(native_handle_type context, ownership owns) {
  error_code ec;
  *this = device(context, owns, ec);
  detail::throw_if(ec, "device");
}

device::device(native_handle_type context, ownership owns, error_code& ec) {
  ec.clear();
  if (context == nullptr) {
    ec = asio::error::invalid_argument;
    return;
  }
  // All handles of a context are one device: its asynchronous events have one reader.
  open_contexts& opened = open_contexts::of_process();
  const std::lock_guard lock(opened.mutex);
  impl_ = opened.find(context);
  if (impl_ != nullptr) {
    if (owns == ownership::take)
      impl_->owns = owns;
    return;
  }
  ibv_device_attr attributes{};
  if (const int e = ibv_query_device(context, &attributes)) {
    ec = detail::system_error_code(e);
    return;
  }
  std::unique_ptr<ibv_comp_channel, int (*)(ibv_comp_channel*)> first(
      ibv_create_comp_channel(context), &ibv_destroy_comp_channel);
  if (first == nullptr) {
    ec = detail::system_error_code(errno);
    return;
  }
  opened.all.reserve(opened.all.size() + 1);
  impl_ = std::make_shared<impl>(context, owns);
  opened.all.push_back(impl_);
  impl_->listeners->belong_to(impl_);
  impl_->first_made = first.release();
  impl_->attributes = attributes;
  impl_->max_message_bytes = longest_message(context, attributes);
  impl_->occupied = detail::occupy_invalid_offset(context, impl_->attributes);
  impl_->memory_windows = makes_windows(context, attributes);
  ibv_device_attr_ex extended{};
  if (ibv_query_device_ex(context, nullptr, &extended) == 0) {
    impl_->on_demand_paging = pages_connections(extended.odp_caps);
    impl_->flush = flushes(extended);
  }
  if (attributes.vendor_id == detail::mellanox_vendor) {
    // As use_scatter_to_cqe in libmlx5 (providers/mlx5/verbs.c), for each queue pair.
    const char* const copies = std::getenv("MLX5_SCATTER_TO_CQE");
    impl_->device_only_receives = copies != nullptr && std::string_view(copies) == "0";
  }
  // Events are read when the descriptor is ready; a read without an event must not block.
  fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
}

detail::device_listeners& device::listeners() const noexcept { return *impl_->listeners; }

detail::queue_pair_limits& device::queue_pair_limits() const noexcept {
  return impl_->queue_pair_limits;
}

int device::next_completion_vector() const noexcept {
  const int vectors = std::max(impl_->context->num_comp_vectors, 1);
  return static_cast<int>(impl_->next_vector++ % static_cast<unsigned>(vectors));
}

device::native_handle_type device::native_handle() const noexcept {
  return impl_ ? impl_->context : nullptr;
}

// The verbs of a removed device return EIO a little before the kernel has destroyed the objects of
// the context. It destroys them from the last to the first (drivers/infiniband/core/rdma_core.c,
// uverbs_destroy_ufile_hw), and a completion channel reports its end by POLLERR (uverbs_main.c,
// ib_uverbs_event_poll).
bool detail::is_removed(const device::impl& d) noexcept { return has_ended(*d.first_made, 0); }

bool device::is_removed() const noexcept { return detail::is_removed(*impl_); }

bool device::is_removed_soon() const noexcept {
  constexpr int patience = 100; // ms
  if (impl_->removal_missed.load())
    return is_removed();
  const bool removed = has_ended(*impl_->first_made, patience);
  if (!removed)
    impl_->removal_missed.store(true);
  return removed;
}

std::string device::name() const { return ibv_get_device_name(impl_->context->device); }

transport device::type() const noexcept { return transport_of(*impl_->context->device); }

const ibv_device_attr& device::attributes() const noexcept { return impl_->attributes; }

bool device::has_atomics() const noexcept {
  return impl_->attributes.atomic_cap != IBV_ATOMIC_NONE;
}

bool device::has_immediate() const noexcept { return type() != transport::iwarp; }

bool device::has_memory_windows() const noexcept { return impl_->memory_windows; }

bool device::has_invalidation() const noexcept {
  return (impl_->attributes.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
}

bool device::confines_windows() const noexcept {
  return has_memory_windows() && has_invalidation() &&
         impl_->attributes.vendor_id != detail::rxe_vendor;
}

bool device::has_flush(placement any) const noexcept { return has(impl_->flush, any); }

bool device::has_on_demand_paging() const noexcept { return impl_->on_demand_paging; }

bool device::has_device_only_receives() const noexcept { return impl_->device_only_receives; }

// Some drivers leave `max_sge_rd` at 0.
std::uint32_t device::max_read_buffers() const noexcept {
  const ibv_device_attr& limits = impl_->attributes;
  const int most = limits.max_sge_rd > 0 ? limits.max_sge_rd : limits.max_sge;
  return type() == transport::iwarp ? 1 : static_cast<std::uint32_t>(std::max(most, 1));
}

std::uint32_t device::max_message_bytes() const noexcept { return impl_->max_message_bytes; }

ibv_port_attr device::port(std::uint8_t number, error_code& ec) const {
  ibv_port_attr result{};
  const int e = ibv_query_port(impl_->context, number, &result);
  ec = e == 0 ? error_code() : detail::system_error_code(e);
  return result;
}

ibv_port_attr device::port(std::uint8_t number) const {
  error_code ec;
  const ibv_port_attr result = port(number, ec);
  detail::throw_if(ec, "ibv_query_port");
  return result;
}

port_counters device::counters(std::uint8_t number) const {
  const std::string folder =
      "/sys/class/infiniband/" + name() + "/ports/" + std::to_string(number) + "/hw_counters/";
  // Drivers use different names for the same counter.
  const auto sum = [&folder](std::initializer_list<const char*> names) {
    std::optional<std::uint64_t> result;
    for (const char* name : names) {
      std::uint64_t value = 0;
      if (std::ifstream(folder + name) >> value)
        result = result.value_or(0) + value;
    }
    return result;
  };
  port_counters result;
  result.rnr = sum({"rcvd_rnr_err", "rnr_nak_retry_err"});
  result.retries = sum({"completer_retry_err", "local_ack_timeout_err", "packet_seq_err"});
  return result;
}

} // namespace asio_rdma
