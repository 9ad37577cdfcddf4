// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/operation.hpp>
#include <asio_rdma/memory_pool.hpp>

#include "link/frame_receive.hpp"
#include "memory/dropped_blocks.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace asio_rdma::detail {

class link_impl;
class shared_receive;
class shared_receive_queue_impl;
class shared_receives_impl;
class shared_source;

/// The origin of a link's receives: they are its own, or shared with other links. Functions are
/// called with the link locked, but for `queue` and `promise`.
class receive_source {
public:
  receive_source(const receive_source&) = delete;
  virtual ~receive_source() = default;

  /// The shared receive queue for the link's queue pair; null if it needs none.
  virtual std::shared_ptr<shared_receive_queue_impl> queue() const = 0;
  /// Receives that the link promises its peer at a time; 0: all.
  virtual std::uint16_t promise() const noexcept = 0;
  /// Allocates memory, before the link begins.
  virtual error_code make() = 0;
  /// From here on the link has receives. It keeps itself alive until they have ended.
  virtual void begin() = 0;
  virtual frame_receive& receive(std::uint32_t slot) noexcept = 0;
  /// Allocates memory of `size` bytes for each receive; a receive gets it when it is posted again.
  /// Returns false if that is not possible.
  virtual bool grow(std::uint32_t size) = 0;
  /// The link has no more use for the frame in `slot`.
  virtual void free(std::uint32_t slot) = 0;
  /// Gives the link more receives, up to the number that it wants, as far as there are any.
  virtual void take() = 0;
  /// Whether receives wait for memory and only the link's timer tries again to allocate it.
  virtual bool starved() const noexcept = 0;
  /// Drops the memory of a closed link.
  virtual void drop_memory(dropped_blocks& to) = 0;
  /// Receives that other links wait for: call `wake` once the link is unlocked. Null if none do.
  virtual std::shared_ptr<shared_receives_impl> waited_for() const = 0;
  virtual bool is_waited_for() const noexcept = 0;

protected:
  explicit receive_source(link_impl& link) noexcept : link_(link) {}

  link_impl& link_;
};

/// A receive that belongs to one link.
class link_receive final : public frame_receive {
public:
  link_receive(link_impl& link, std::uint32_t number) noexcept
      : frame_receive(&link_receive::run, number), link_(link) {}

private:
  static void run(operation* base, disposal how);

  link_impl& link_;
};

/// Receives of the link's own.
class own_source final : public receive_source {
public:
  explicit own_source(link_impl& link) noexcept : receive_source(link) {}

  std::shared_ptr<shared_receive_queue_impl> queue() const override { return nullptr; }
  std::uint16_t promise() const noexcept override { return 0; }
  error_code make() override;
  void begin() override;
  frame_receive& receive(std::uint32_t slot) noexcept override { return *receives_[slot]; }
  bool grow(std::uint32_t size) override;
  void free(std::uint32_t slot) override;
  void take() override;
  bool starved() const noexcept override { return false; }
  void drop_memory(dropped_blocks& to) override;
  std::shared_ptr<shared_receives_impl> waited_for() const override { return nullptr; }
  bool is_waited_for() const noexcept override { return false; }

private:
  bool post(std::uint32_t slot);

  std::vector<std::unique_ptr<link_receive>> receives_;
  std::vector<std::uint32_t> starved_;    // receives without memory
  std::vector<registered_buffer> larger_; // memory for receives that are posted after a growth
};

/// The last operation of a queue pair with shared receives. It reports the end of the queue pair to
/// the link, as the link's own receives would.
class link_end final : public operation {
public:
  explicit link_end(shared_source& source) noexcept;

private:
  static void run(operation* base, disposal how);

  shared_source& source_;
};

/// A link's share of shared receives.
class shared_source final : public receive_source {
public:
  /// Call `join` before the link opens.
  shared_source(link_impl& link, std::shared_ptr<shared_receives_impl> shared) noexcept;
  ~shared_source() override;
  error_code join();
  /// Undoes `join`, unless the link has begun.
  void leave() noexcept;

  std::shared_ptr<shared_receive_queue_impl> queue() const override;
  std::uint16_t promise() const noexcept override;
  error_code make() override { return {}; }
  void begin() override;
  frame_receive& receive(std::uint32_t slot) noexcept override;
  bool grow(std::uint32_t) override { return false; }
  void free(std::uint32_t slot) override;
  void take() override;
  bool starved() const noexcept override;
  void drop_memory(dropped_blocks&) override {}
  std::shared_ptr<shared_receives_impl> waited_for() const override;
  bool is_waited_for() const noexcept override;

  /// The shared receives call these functions, with the link unlocked.
  ///@{
  link_impl& link() const noexcept { return link_; }
  void on_receive(shared_receive& r);
  /// There is a receive that the link waited for.
  void on_found();
  ///@}

private:
  friend link_end; // reports the end of the queue pair

  void on_end(disposal how);

  std::shared_ptr<shared_receives_impl> shared_;
  operation_list in_hands_; // receives that the link holds
  std::uint32_t hands_ = 0; // their number
  link_end end_{*this};
  enum class state : std::uint8_t { apart, joined, sharing, left } state_ = state::apart;
};

} // namespace asio_rdma::detail
