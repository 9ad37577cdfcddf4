// SPDX-License-Identifier: BSL-1.0
#include "verbs/withheld.hpp"

#include <array>
#include <cassert>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>

namespace asio_rdma::detail {
namespace {

using withheld_list = boost::intrusive::list<withheld, boost::intrusive::constant_time_size<false>>;

struct store {
  std::mutex mutex;
  withheld_list all;

  // Never destroyed: the remaining objects are in use until the process ends. Not on the heap, as
  // the first use may find no memory.
  static store& of_process() noexcept {
    alignas(store) static std::array<std::byte, sizeof(store)> memory;
    static store& s = *::new (static_cast<void*>(memory.data())) store;
    return s;
  }
};

} // namespace

void withhold(std::unique_ptr<withheld> w) noexcept {
  assert(w != nullptr);
  store& s = store::of_process();
  const std::lock_guard lock(s.mutex);
  s.all.push_back(*w.release());
}

// The node of the access is destroyed, so no further access to the block is granted.
void leak(buffer_access access) noexcept {
  if (access.block_ != nullptr && access.node_.granted)
    access.block_->access.keep(access.node_);
  static_cast<void>(access.block_.detach());
}

void release_withheld() noexcept {
  store& s = store::of_process();
  withheld_list tried;
  {
    const std::lock_guard lock(s.mutex);
    tried.swap(s.all);
  }
  for (auto i = tried.begin(); i != tried.end();) {
    withheld& w = *i;
    if (w.release())
      i = tried.erase_and_dispose(i, std::default_delete<withheld>());
    else
      ++i;
  }
  const std::lock_guard lock(s.mutex);
  s.all.splice(s.all.begin(), tried);
}

} // namespace asio_rdma::detail
