// SPDX-License-Identifier: BSL-1.0
#include "verbs/device_siw.hpp"

#include "verbs/device_impl.hpp"

#include <rdma/siw-abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <unistd.h>

namespace asio_rdma::detail {
namespace {

// siw rounds the entries up to a power of two and puts its control block behind them.
std::size_t pages_of(int entries, std::size_t page) {
  const std::size_t bytes =
      static_cast<std::size_t>(entries) * sizeof(siw_cqe) + sizeof(siw_cq_ctrl);
  return (bytes + page - 1) / page;
}

} // namespace

ibv_cq* occupy_invalid_offset(ibv_context* context, const ibv_device_attr& attributes) {
  if (context->device->transport_type != IBV_TRANSPORT_IWARP || attributes.vendor_id != siw_vendor)
    return nullptr;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (page > SIW_INVAL_UOBJ_KEY / 2) // no page lies before the invalid one
    return nullptr;
  // Other completion queues fill the offsets up to the page before the invalid one. They are
  // destroyed once the remaining completion queue exists.
  std::size_t before = SIW_INVAL_UOBJ_KEY / page - 1;
  std::array<ibv_cq*, 16> fill{}; // no memory of its own that could be missing
  std::size_t count = 0;
  bool filled = true;
  while (before != 0 && filled && count != fill.size()) {
    int entries = 1;
    while (pages_of(entries * 2, page) <= before)
      entries *= 2;
    fill[count] = ibv_create_cq(context, entries, nullptr, nullptr, 0);
    filled = fill[count++] != nullptr;
    before -= pages_of(entries, page);
  }
  int entries = 1;
  while (pages_of(entries, page) < 2)
    entries *= 2;
  ibv_cq* const result = filled ? ibv_create_cq(context, entries, nullptr, nullptr, 0) : nullptr;
  for (ibv_cq* cq : fill)
    if (cq != nullptr)
      ibv_destroy_cq(cq);
  return result;
}

} // namespace asio_rdma::detail
