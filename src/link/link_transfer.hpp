// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/memory_region.hpp>

#include "link/frame.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace asio_rdma::detail {

class link_impl;

/// A work request of the library's own. `done` is called exactly once, with the link locked, and
/// adds the operations that it completes to the list. The derived class refers to its owner.
class link_transfer : public send_operation {
public:
  using done_function = void (*)(link_transfer&, operation_list&);
  link_transfer(link_impl& link, done_function done) noexcept;

  std::array<ibv_sge, 4> elements{}; ///< Of a frame: its header, and views of payload.
  bool withdrawn = false;            ///< Before it was posted, so its failure is not the link's.
  std::chrono::steady_clock::time_point started_at{}; ///< If the link measures latencies.

protected:
  link_impl& link() const noexcept { return link_; }

private:
  friend link_impl; // calls `done_`, and owns the key of `sink_`
  static void run(operation* base, disposal how);

  link_impl& link_;
  done_function done_;
  memory_region sink_; // see `link_impl::open_sink`
};

/// A visit to the link that the completion queue has postponed.
class idle_visit final : public operation {
public:
  explicit idle_visit(link_impl& link) noexcept : operation(&idle_visit::run), link_(link) {
    internal = true;
  }

private:
  static void run(operation* base, disposal how);

  link_impl& link_;
};

/// The SEND of a frame. The header has memory of its own, with room for small payloads.
class frame_transfer final : public link_transfer {
public:
  static constexpr std::uint32_t room = 256;
  static constexpr std::size_t payload_room = room - frame_header::size;
  static constexpr std::uint32_t max_views = 3; ///< See `add`.

  /// `place`: registered memory of `link_options::send_room` bytes, at least `room`.
  frame_transfer(link_impl& link, std::uint32_t slot, std::byte* place) noexcept;

  /// Writes the header into memory with the local key `lkey`.
  void begin(const frame_header& header, std::uint32_t lkey) noexcept;
  /// Copies payload behind the header. All of it fits the frame's place: any `payload_room` bytes
  /// do.
  void copy(const void* data, std::size_t bytes) noexcept;
  /// Adds payload behind the copied bytes: at most `link_impl::frame_views` elements, which the
  /// device reads in place, unless the link copies all bytes of its frames. Such a link must not
  /// get device-only memory here.
  void add(const ibv_sge& element) noexcept;
  /// The frame is complete. If `fenced`, it starts after the preceding READs.
  void finish(bool fenced) noexcept;

private:
  static void on_done(link_transfer& t, operation_list& done);

  std::uint32_t slot_;
  std::byte* place_;
};

} // namespace asio_rdma::detail
