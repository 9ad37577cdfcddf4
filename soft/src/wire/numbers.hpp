// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_NUMBERS_HPP
#define SOFT_WIRE_NUMBERS_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <sys/socket.h>
#include <sys/un.h>

namespace soft {

/// A number of a queue pair has 24 bits: its upper bits are those of its block, which belongs to
/// one process of this machine.
inline constexpr unsigned index_bits = 12;
constexpr std::uint32_t block_of(std::uint32_t number) noexcept { return number >> index_bits; }

/// The abstract address of unix(7) of a block: only this machine's processes reach it, and it is no
/// file. Connections and datagrams have one each.
struct block_address {
  enum kind { connections, datagrams };
  block_address(std::uint32_t block, kind k) noexcept {
    name.sun_family = AF_UNIX;
    const int n = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "asio_rdma_soft/%u%s",
                                block, k == datagrams ? "/datagrams" : "");
    size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(n));
  }
  const sockaddr& base() const noexcept { return reinterpret_cast<const sockaddr&>(name); }

  sockaddr_un name{};
  socklen_t size;
};

/// A socket of one of these kinds; -1: errno.
inline int make_socket(block_address::kind k) noexcept {
  const int type = k == block_address::datagrams ? SOCK_DGRAM : SOCK_STREAM;
  return socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

} // namespace soft

#endif
