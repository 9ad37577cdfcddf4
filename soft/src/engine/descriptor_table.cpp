// SPDX-License-Identifier: BSL-1.0
#include "engine/descriptor_table.hpp"

#include <cerrno>
#include <unistd.h>

namespace soft {

void descriptor_table::close() noexcept {
  if (const int made = epoll_.exchange(-1); made >= 0)
    ::close(made);
}

int descriptor_table::open() {
  if (fd() >= 0)
    return 0;
  const int made = epoll_create1(EPOLL_CLOEXEC);
  if (made < 0)
    return errno;
  epoll_.store(made, std::memory_order_release);
  return 0;
}

int descriptor_table::watch(int fd, std::uint32_t events, descriptor& d) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = next_id_;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0)
    return errno;
  handlers_.emplace(next_id_, handler{&d, (events & EPOLLIN) != 0});
  ids_[fd] = next_id_++;
  ++size_;
  return 0;
}

int descriptor_table::change(int fd, std::uint32_t events) {
  const std::uint64_t id = ids_.at(fd);
  handlers_.at(id).reads = (events & EPOLLIN) != 0;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id; // the structure is packed
  return epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) == 0 ? 0 : errno;
}

void descriptor_table::forget(int fd) {
  const auto found = ids_.find(fd);
  if (found == ids_.end())
    return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(found->second);
  ids_.erase(found);
  --size_;
}

void descriptor_table::report(const epoll_event& e) {
  const std::uint64_t id = e.data.u64;
  if (const auto found = handlers_.find(id); found != handlers_.end())
    found->second.of->ready(e.events);
}

} // namespace soft
