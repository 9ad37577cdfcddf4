// SPDX-License-Identifier: BSL-1.0
#include "wire/datagrams.hpp"

#include "device/queue_pair.hpp"
#include "roce/datagram.hpp"
#include "wire/numbers.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <unordered_map>

namespace soft {
namespace {

constexpr int turns = 64;              // datagrams before other tasks get their turn
constexpr std::size_t most_peers = 64; // processes with a socket to them
// A process that takes no datagram for so long is stopped: datagrams to it are lost.
constexpr std::chrono::seconds patience{1};

/// The process with a block of numbers, as a receiver of datagrams.
class datagram_peer final : public descriptor {
public:
  enum class result { sent, behind, gone };
  // Of a connected socket, which it takes.
  explicit datagram_peer(int socket) : socket_(socket) {}
  ~datagram_peer() {
    wake();
    close(socket_);
  }

  result send(queue_pair& from, const spans& whole) {
    iovec v[std::size(whole.parts)];
    for (unsigned i = 0; i < whole.count; ++i)
      v[i] = {whole.parts[i].data, whole.parts[i].bytes};
    msghdr m{};
    m.msg_iov = v;
    m.msg_iovlen = whole.count;
    used_ = clock::now();
    while (sendmsg(socket_, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      if (errno == EINTR)
        continue;
      if (errno != EAGAIN)
        return errno == ECONNREFUSED || errno == EPIPE || errno == ENOTCONN ? result::gone
                                                                            : result::sent;
      return wait(from) ? result::behind : result::sent;
    }
    behind_since_ = {};
    return result::sent;
  }
  bool is_awaited() const noexcept {
    return !waiting_.empty() && clock::now() < behind_since_ + patience;
  }
  clock::time_point used() const noexcept { return used_; }

private:
  // False: it has been behind for too long, or cannot be waited for.
  bool wait(queue_pair& from) {
    if (behind_since_ == clock::time_point{})
      behind_since_ = used_;
    const auto until = behind_since_ + patience;
    if (used_ >= until)
      return false;
    if (waiting_.empty() && engine::get().watch(socket_, EPOLLOUT, *this) != 0)
      return false;
    waiting_.insert(from.qp_base.qp_num);
    engine::get().schedule_at(from, until);
    return true;
  }
  void ready(std::uint32_t) override {
    behind_since_ = {}; // it has taken a datagram
    wake();
  }
  void wake() {
    engine::get().forget(socket_);
    for (const std::uint32_t number : std::exchange(waiting_, {}))
      if (queue_pair* const qp = queue_pair::find(number))
        engine::get().schedule(*qp);
  }

  const int socket_;
  std::set<std::uint32_t> waiting_; // numbers of queue pairs
  clock::time_point used_{}, behind_since_{};
};

std::unordered_map<std::uint32_t, std::unique_ptr<datagram_peer>>& peers() {
  static auto* const all = new std::unordered_map<std::uint32_t, std::unique_ptr<datagram_peer>>;
  return *all;
}

// Closes the socket that was not used for longest. False: a queue pair waits for each of them.
bool make_room() {
  auto& all = peers();
  auto oldest = all.end();
  for (auto i = all.begin(); i != all.end(); ++i)
    if (!i->second->is_awaited() &&
        (oldest == all.end() || i->second->used() < oldest->second->used()))
      oldest = i;
  if (oldest == all.end())
    return false;
  all.erase(oldest);
  return true;
}

// nullptr: no process has the block, or there is no socket.
datagram_peer* find_peer(std::uint32_t block) {
  auto& all = peers();
  if (const auto found = all.find(block); found != all.end())
    return found->second.get();
  if (all.size() >= most_peers && !make_room())
    return nullptr;
  const int s = make_socket(block_address::datagrams);
  if (s < 0)
    return nullptr;
  const block_address to(block, block_address::datagrams);
  if (connect(s, &to.base(), to.size) != 0) {
    close(s);
    return nullptr;
  }
  return all.emplace(block, std::make_unique<datagram_peer>(s)).first->second.get();
}

// Only addresses of this machine can be those of its processes.
void take(std::span<const std::byte> bytes) {
  std::span<const std::byte> payload;
  const auto d = roce::decode(bytes, payload);
  if (!d || !is_here(d->way.source) || !is_here(d->way.destination))
    return;
  queue_pair* const to = queue_pair::find(d->to);
  if (to == nullptr)
    return;
  spans whole;
  for (const auto part : {bytes.first(sizeof(ibv_grh)), payload})
    whole.add(const_cast<std::byte*>(part.data()), part.size());
  to->take_datagram(*d, whole);
}

} // namespace

bool send_datagram(queue_pair& from, std::uint32_t to, const spans& whole) {
  // A process that ended may have been followed by another one.
  for (int attempt = 0; attempt < 2; ++attempt) {
    datagram_peer* const peer = find_peer(block_of(to));
    if (peer == nullptr)
      return true;
    switch (peer->send(from, whole)) {
    case datagram_peer::result::sent:
      return true;
    case datagram_peer::result::behind:
      return false;
    case datagram_peer::result::gone:
      peers().erase(block_of(to));
    }
  }
  return true;
}

int datagram_receiver::make(std::uint32_t block, std::unique_ptr<datagram_receiver>& result) {
  const int s = make_socket(block_address::datagrams);
  if (s < 0)
    return errno;
  auto made = std::unique_ptr<datagram_receiver>(new datagram_receiver(s));
  const block_address own(block, block_address::datagrams);
  if (bind(s, &own.base(), own.size) != 0)
    return errno;
  if (const int error = engine::get().watch(s, EPOLLIN, *made))
    return error;
  result = std::move(made);
  return 0;
}

datagram_receiver::~datagram_receiver() {
  engine::get().forget(socket_);
  close(socket_);
}

void datagram_receiver::ready(std::uint32_t) {
  static auto& buffer = *new std::array<std::byte, 64 * 1024>; // the engine's thread alone receives
  for (int turn = 0; turn < turns; ++turn) {
    const ssize_t n = recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && errno != EINTR)
      return;
    if (n > 0 && static_cast<std::size_t>(n) <= buffer.size())
      take({buffer.data(), static_cast<std::size_t>(n)});
  }
}

} // namespace soft
