// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_PEER_PEER_HPP
#define SOFT_TEST_PEER_PEER_HPP

#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <string>
#include <vector>

namespace peer {

/// Ends the process with status 1 and a line on stderr.
[[noreturn]] void give_up(const std::string& why);
/// The same, with errno, unless `result` is 0.
void require(int result, const char* what);
inline void check(bool holds, const char* what) {
  if (!holds)
    give_up(what);
}

/// Bytes that differ from those of other seeds.
std::vector<std::byte> pattern(std::size_t size, unsigned seed);

struct event {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = 0;
  std::vector<std::byte> data;
  rdma_cm_id* id = nullptr; ///< of a request: the new one
};

/// Memory of a peer.
struct remote {
  std::uint64_t address;
  std::uint32_t key;
};

/// One side of a connection: an id of librdmacm with a queue pair, by functions that wait.
class side {
public:
  static constexpr std::size_t memory_size = 256 * 1024;
  /// How many bytes of the memory, at its end, receive messages.
  static constexpr std::size_t inbox_size = 64 * 1024;
  static constexpr unsigned depth = 16;

  /// A side that connects.
  side(const char* address, const char* port);
  /// A side that takes a request of a listener, on whose channel the events come.
  side(rdma_cm_id* requested, rdma_event_channel* channel);
  ~side();
  side(const side&) = delete;
  side& operator=(const side&) = delete;

  rdma_cm_id* id() noexcept { return id_; }
  std::byte* memory() noexcept { return memory_.data(); }
  std::byte* inbox() noexcept { return memory_.data() + memory_size - inbox_size; }
  remote own() const noexcept;

  /// The next event of the connection.
  event next_event();
  /// The same, which must be this one.
  event expect(rdma_cm_event_type type);

  /// Errors of rdma_connect: 0 or an errno.
  int connect(const std::vector<std::byte>& data);
  void accept(const std::vector<std::byte>& data);

  /// Posts a receive of `bytes` bytes of the inbox, from `offset` on.
  void receive(std::size_t bytes, std::size_t offset = 0);
  /// Posts a request about `bytes` bytes of the memory. Returns an errno.
  int post(ibv_wr_opcode what, std::size_t offset, std::size_t bytes, remote at = {});
  /// The next completion of a receive, or of a request.
  ibv_wc received();
  ibv_wc sent();
  /// Posts and completes a request.
  void carry_out(ibv_wr_opcode what, std::size_t offset, std::size_t bytes, remote at = {});

private:
  void make_queue_pair();

  rdma_event_channel* channel_ = nullptr;
  bool owns_channel_ = false;
  rdma_cm_id* id_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::vector<std::byte> memory_ = std::vector<std::byte>(memory_size);
};

/// The next event of a channel.
event next_event(rdma_event_channel* channel);

} // namespace peer

#endif
