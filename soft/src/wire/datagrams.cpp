// SPDX-License-Identifier: BSL-1.0
#include "wire/datagrams.hpp"

#include "device/queue_pair.hpp"
#include "engine/of_process.hpp"
#include "roce/datagram.hpp"
#include "wire/datagram_socket.hpp"
#include "wire/numbers.hpp"

#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <unordered_map>

namespace soft {
namespace {

constexpr int turns = 64;              // datagrams before other tasks get their turn
constexpr std::size_t most_peers = 64; // processes with a socket to them

using peer_table = std::unordered_map<std::uint32_t, std::unique_ptr<datagram_socket>>;
peer_table& peers() { return of_process<peer_table>(); }

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
datagram_socket* find_peer(std::uint32_t block) {
  auto& all = peers();
  if (const auto found = all.find(block); found != all.end())
    return found->second.get();
  const int s = make_socket(block_address::datagrams);
  if (s < 0)
    return nullptr;
  const block_address to(block, block_address::datagrams);
  if (connect(s, &to.base(), to.size) != 0 || (all.size() >= most_peers && !make_room())) {
    close(s);
    return nullptr;
  }
  return all.emplace(block, std::make_unique<datagram_socket>(s)).first->second.get();
}

// Calls `send` with the socket to the process of the queue pair `to`. A process that ended may have
// been followed by another one.
template <class Send>
datagram_socket::result send_to_process(std::uint32_t to, Send send) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    datagram_socket* const peer = find_peer(block_of(to));
    if (peer == nullptr)
      break;
    const auto result = send(*peer);
    if (result != datagram_socket::result::gone)
      return result;
    peers().erase(block_of(to));
  }
  return datagram_socket::result::sent;
}

// A source that is no address of this machine is that of a datagram that was passed on. Any process
// can claim that, as it can claim any queue pair of this machine.
void take(std::span<const std::byte> bytes) {
  std::span<const std::byte> payload;
  const auto d = roce::decode(bytes, payload);
  if (d && is_here(d->way.destination))
    deliver(*d, bytes, payload);
}

} // namespace

bool deliver(const roce::datagram& d, std::span<const std::byte> whole,
             std::span<const std::byte> payload) {
  queue_pair* const to = queue_pair::find(d.to);
  if (to == nullptr)
    return false;
  spans received;
  for (const auto part : {whole.first(sizeof(ibv_grh)), payload})
    received.add(const_cast<std::byte*>(part.data()), part.size());
  to->take_datagram(d, received);
  return true;
}

void pass_on(std::uint32_t to, std::span<const std::byte> whole) {
  iovec v{const_cast<std::byte*>(whole.data()), whole.size()};
  msghdr m{};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  send_to_process(to, [&](datagram_socket& s) { return s.try_to_send(m); });
}

bool send_datagram(queue_pair& from, std::uint32_t to, const spans& whole) {
  iovec v[std::size(whole.parts)];
  for (unsigned i = 0; i < whole.count; ++i)
    v[i] = {whole.parts[i].data, whole.parts[i].bytes};
  msghdr m{};
  m.msg_iov = v;
  m.msg_iovlen = whole.count;
  return send_to_process(to, [&](datagram_socket& s) { return s.send(from, m); }) ==
         datagram_socket::result::sent;
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
  static auto& buffer = *new std::array<std::byte, 1 << 16>; // the engine's thread alone receives
  for (int turn = 0; turn < turns; ++turn) {
    const ssize_t n = recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && errno != EINTR)
      return;
    if (n > 0 && static_cast<std::size_t>(n) <= buffer.size())
      take({buffer.data(), static_cast<std::size_t>(n)});
  }
}

} // namespace soft
