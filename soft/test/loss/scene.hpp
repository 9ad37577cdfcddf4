// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_LOSS_SCENE_HPP
#define SOFT_TEST_LOSS_SCENE_HPP

#include <cstddef>
#include <cstdint>
#include <infiniband/verbs.h>
#include <span>
#include <vector>

namespace soft::test {

/// The sides of a connection: one connects, and the other one listens.
enum class role { connector, listener };
inline constexpr role other_of(role r) {
  return r == role::connector ? role::listener : role::connector;
}

/// The parts of a side's memory. Each is registered alone, with no more rights than it needs.
enum class area : unsigned {
  source, ///< of what the side sends and writes; the peer reads it
  inbox,  ///< of receives
  target, ///< the peer writes here
  window, ///< the peer writes here by a memory window
  words,  ///< of the peer's atomics
  fetched ///< by READs and atomics of the side
};
inline constexpr unsigned areas = 6;

/// A request of a scene.
struct request {
  enum class side { both, connector, listener };
  ibv_wr_opcode what;
  std::uint32_t bytes = 0;
  /// It is posted when so many messages of the peer have come, in one list with its neighbours that
  /// are posted then.
  unsigned after = 0;
  side by = side::both;
  area place = area::target; ///< of a WRITE
  bool last = false;         ///< it is posted when all others of its side have completed

  // ---- of `scene`
  std::size_t from = 0; ///< in the memory of its side: the data, or where it is fetched to
  std::size_t to = 0;   ///< in the memory of the peer

  bool is_message() const noexcept;
  bool is_atomic() const noexcept;
  bool has_immediate() const noexcept;
  bool fetches() const noexcept { return what == IBV_WR_RDMA_READ || is_atomic(); }
  bool writes() const noexcept;
};

/// The requests of both sides, and the places of their bytes, which are the same in the memory of
/// both sides. Between any two places there are bytes that nothing may change.
class scene {
public:
  /// @param early  receives that are posted before the connection. Later ones are posted one by
  ///               one, each when a message has come.
  /// @param segment  bytes of a TCP segment of the connection; 0: as the machine has it
  scene(unsigned early, std::vector<request> requests, int segment = 0);

  unsigned early() const noexcept { return early_; }
  int segment() const noexcept { return segment_; }
  /// The requests of a side.
  std::vector<request> of(role r) const;
  struct range {
    std::size_t first = 0, bytes = 0;
  };
  range place_of(area a) const noexcept { return places_[static_cast<unsigned>(a)]; }
  std::size_t memory_bytes() const noexcept { return bytes_; }

  /// The memory of a side before the connection, and after a whole scene.
  std::vector<std::byte> before(role r) const;
  std::vector<std::byte> after(role r) const;

  // ---- values of atomics and immediate data
  /// The word that the atomic `q` of a side finds, and the one that it leaves.
  static std::uint64_t found(const request& q, role by) noexcept;
  static std::uint64_t left(const request& q, role by) noexcept;
  static constexpr std::uint64_t addend = 0x0102030405060708;
  static std::uint32_t immediate(std::size_t index, role by) noexcept;

private:
  const unsigned early_;
  const int segment_;
  std::vector<request> requests_;
  range places_[areas];
  std::size_t bytes_ = 0;
};

/// Requests of all kinds, of both sides at the same time, whose receives are posted late. Some
/// messages have several segments.
const scene& mixture();
/// Large ones, which the device sends and receives without a copy.
const scene& large();
std::span<const scene* const> scenes();

} // namespace soft::test

#endif
