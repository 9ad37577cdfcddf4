// SPDX-License-Identifier: BSL-1.0
#include "connection/loan.hpp"

#include <asio_rdma/detail/core/mutex.hpp>

#include "connection/connection_impl.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

namespace asio_rdma::detail {

/// All loans of the process, in order of address.
struct loan::list {
  struct key_of_loan {
    using type = std::uintptr_t;
    const type& operator()(const loan& l) const noexcept { return l.begin_; }
  };

  mutex mutex_;
  boost::intrusive::multiset<loan, boost::intrusive::key_of_value<key_of_loan>,
                             boost::intrusive::constant_time_size<false>>
      all;
  std::uintptr_t longest = 0; // no loan in `all` is longer

  // Never destroyed, because a connection may live until the process ends. Not on the heap, as the
  // first use may find no memory.
  static list& of_process() noexcept {
    alignas(list) static std::array<std::byte, sizeof(list)> memory;
    static list& l = *::new (static_cast<void*>(memory.data())) list;
    return l;
  }
};

void loan::begin(const registered_buffer& memory) noexcept {
  end();
  list& l = list::of_process();
  const std::lock_guard lock(l.mutex_);
  begin_ = reinterpret_cast<std::uintptr_t>(memory.data());
  end_ = begin_ + memory.size();
  l.longest = std::max(l.longest, end_ - begin_);
  l.all.insert(*this);
}

void loan::end() noexcept {
  if (end_ == 0) // only the connection changes it, under the link's mutex
    return;
  list& l = list::of_process();
  const std::lock_guard lock(l.mutex_);
  l.all.erase(l.all.iterator_to(*this));
  if (l.all.empty())
    l.longest = 0;
  begin_ = end_ = 0;
}

std::vector<std::shared_ptr<connection_impl>> loan::owners(const registered_buffer& memory) {
  const auto from = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto to = from + memory.size();
  std::vector<std::shared_ptr<connection_impl>> result;
  list& l = list::of_process();
  {
    const std::lock_guard lock(l.mutex_);
    const auto first = l.all.lower_bound(from - std::min(from, l.longest));
    const auto last = l.all.lower_bound(to);
    // Under the mutex no reference may be dropped, as a connection's destructor locks it.
    result.reserve(static_cast<std::size_t>(std::distance(first, last)));
    for (auto i = first; i != last; ++i)
      if (i->end_ > from)
        if (auto owner = i->owner_.weak_from_this().lock()) // null if it is being destroyed
          result.push_back(std::static_pointer_cast<connection_impl>(std::move(owner)));
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

} // namespace asio_rdma::detail
