// SPDX-License-Identifier: BSL-1.0
#include "withheld.hpp"

#include <list>
#include <mutex>
#include <utility>

namespace asio_rdma::detail {
namespace {

using withheld_list = std::list<std::unique_ptr<withheld>>;

struct store {
  std::mutex mutex;
  withheld_list all;

  // Never destroyed: what is left is in use to the end.
  static store& of_process() {
    static store& s = *new store;
    return s;
  }
};

} // namespace

void withhold(std::unique_ptr<withheld> w) {
  withheld_list added;
  added.push_back(std::move(w));
  store& s = store::of_process();
  const std::lock_guard lock(s.mutex);
  s.all.splice(s.all.end(), added);
}

void release_withheld() noexcept {
  store& s = store::of_process();
  withheld_list tried;
  {
    const std::lock_guard lock(s.mutex);
    tried.swap(s.all);
  }
  tried.remove_if([](const std::unique_ptr<withheld>& w) { return w->release(); });
  const std::lock_guard lock(s.mutex);
  s.all.splice(s.all.begin(), tried);
}

} // namespace asio_rdma::detail
