// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_DATAGRAMS_HPP
#define SOFT_TEST_DEVICE_DATAGRAMS_HPP

#include "support/fixture.hpp"

namespace soft::test {

using owned_ah = std::unique_ptr<ibv_ah, destroys<ibv_destroy_ah>>;

/// A queue pair of type UD that is ready, and the way to a loopback address. Receives use 256 bytes
/// each: that of `id` begins at 256 * `id`. Payloads come from the first 256 bytes.
struct datagram_side {
  explicit datagram_side(ibv_context& c, bool v6 = false);

  side s;
  owned_ah way;

  std::uint32_t number() const { return s.qp->qp_num; }
  void receive(std::uint64_t id, std::uint32_t bytes = 256);
  /// Posts 8 bytes, the first of which is the id.
  int send(std::uint64_t id, std::uint32_t to, std::uint32_t q_key = test_q_key,
           ibv_wr_opcode opcode = IBV_WR_SEND);
  /// The first byte of the payload in a receive.
  std::byte first_byte(std::uint64_t id) const { return s.memory[256 * id + sizeof(ibv_grh)]; }
  ibv_grh* header(std::uint64_t id) {
    return reinterpret_cast<ibv_grh*>(s.memory.data() + 256 * id);
  }
};

} // namespace soft::test

#endif
