// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/detail/connection/connection_face.hpp>
#include <boost/asio/cancellation_type.hpp>

#include "connection/connection_records.hpp"
#include "connection/connection_regions.hpp"
#include "core/free_list.hpp"
#include "link/link_session.hpp"
#include "memory/slow_allocation.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace asio_rdma::detail {

/// The logic of `basic_connection`: messages on a link, and operations on the peer's memory.
class connection_impl final : public link_session {
public:
  connection_impl(asio::execution_context& context, const memory_pool& pool,
                  const connection_options& options);
  ~connection_impl() override;

  /// Long messages up to these sizes may use memory of the pool that longer ones leave, if no other
  /// message of the link is in it (docs/security.md).
  static constexpr std::uint64_t short_message = std::uint64_t(1) << 20,
                                 small_message = std::uint64_t(1) << 17;
  /// Bytes of a frame of several small messages, with its header.
  static constexpr std::uint32_t gathered_room = 1024;

  /// As the functions of `link_impl`.
  ///@{
  error_code open(std::shared_ptr<completion_queue_impl> queue);
  error_code open(const std::shared_ptr<shared_receives_impl>& shared);
  void close() { link_.close(); }
  ///@}
  const connection_options& options() const noexcept { return options_; }

  /// Return true, or false with the error in the operation, which then stays the caller's.
  bool start(message_send& op, const payload& p, std::optional<std::uint32_t> immediate);
  bool start(message_receive& op);
  /// Posts the work requests as one chain, by one doorbell. The operation completes when all of
  /// them have completed.
  bool start(remote_operation& op, std::span<const remote_work> works);
  /// Starts a request, a renewal, a wait for a region or a hand-back: `op.why` selects which.
  bool start(region_operation& op);
  /// Lends `memory` for the operation's lease.
  bool start(region_operation& op, const registered_buffer& memory);

  /// Makes a pending background wait count as work of the context.
  void to_foreground(message_receive& op);

  void release_lease(std::uint32_t id);
  protocol_clock::time_point lease_deadline(std::uint32_t id) const;
  /// Revokes the peer's access to `memory`, or to all memory if null. Returns the number of grants.
  std::size_t revoke(const registered_buffer* memory);
  /// Revokes the access, and lets the peer finish its operations within `grace`.
  bool start_revoke(region_operation& op, const registered_buffer* memory,
                    std::chrono::microseconds grace);
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  /// Thread-safe.
  connection_statistics counters() const noexcept override;
  /// Cancels every wait for a message. No message is lost, and sends continue.
  void cancel_receives();

private:
  friend connection_regions; // completes operations, makes regions of granted leases, and
                             // allocates memory for the peer
  friend message_pull;       // calls `pull_done` when its READs have ended
  friend remote_record;      // calls `remote_done` when its work request has ended

  /// Delays the goodbye while operations on the peer's memory are outstanding.
  struct remote_part final : link_part {
    explicit remote_part(connection_impl& c) noexcept : owner(c) {}
    disposition on_frame(const frame_header&, std::span<const std::byte>, std::uint32_t,
                         protocol_clock::time_point) override {
      return disposition::violation;
    }
    bool drained() const override { return owner.remote_under_way_ == 0; }
    using link_part::ask_to_act; // at most the end of a hold, and so `run_parts`
    using link_part::idle;
    connection_impl& owner;
  };

  void make_parts(frame_link& frames, const handshake& peer) override;
  bool run_parts(operation_list& done) override;
  void on_idle(bool quiet) override;
  void on_key_ended(offered& o, operation_list& done) override;
  void add_payload(const outgoing_frame& frame, frame_transfer& to) override;

  void run_action(const message_action& a, operation_list& done);
  error_code take_sizes(const error_code& ec) noexcept;
  void begin(connection_operation& op);
  void complete(connection_operation& op, const error_code& ec, operation_list& done);
  void has_ended(connection_operation& op, operation_list& done);
  bool holds_ends();
  void end_background(connection_operation& op);
  void cancel_active(std::uint64_t id, asio::cancellation_type_t type);
  void cancel(connection_operation& op, asio::cancellation_type_t type, operation_list& done);

  // Sends.
  error_code fill(message_record& r, const payload& p);
  bool find_views(message_record& r, const payload& p) const;
  static void add_message(const message_record& r, frame_transfer& to);
  void expose(message_record& r);
  void end_send(message_record& r, operation_list& done);
  void complete_send(message_record& r, operation_list& done);
  bool cancel(message_send& op, asio::cancellation_type_t type, operation_list& done);
  void give_back(message_record& r) noexcept;

  // Receives.
  bool find_key(ibv_sge& e) const;
  void complete_receive(message_receive& r, operation_list& done);
  void cancel(message_receive& op, operation_list& done);
  void begin_pull(const message_action& a);
  /// Whether a message of so many bytes may be in the pool, if that takes so many more.
  bool has_room_to_pull(std::uint64_t bytes, std::uint64_t more) const noexcept;
  registered_buffer allocate_to_pull(std::size_t bytes, error_code& ec);
  void drop_to_come() noexcept;
  void look_for_memory();
  void pull_done(message_pull& p);
  message_pull& pull_of(std::uint32_t slot) noexcept;
  void give_back(message_pull& p) noexcept;

  // Operations on the peer's memory.
  error_code check_work(const remote_work& w) const;
  std::size_t most_views(ibv_wr_opcode opcode) const noexcept;
  error_code fill(remote_record& r, const remote_work& w, const remote_portion& of);
  error_code fill(remote_operation& op, std::span<const remote_work> works, remote_record*& first);
  void remote_done(remote_record& r, operation_list& done);
  void end_remote(remote_record& r, operation_list& done);
  bool cancel(remote_operation& op, asio::cancellation_type_t type, operation_list& done);
  bool has_begun(const remote_operation& op);

  // Leases.
  /// Returns an error if the region cannot be used on this connection.
  error_code check_region(const remote_region& r) const;
  remote_region make_region(const remote_lease& l);

  connection_options options_;
  std::optional<message_protocol> messages_;
  free_list<message_record> records_;
  free_list<remote_record> remote_records_;
  std::optional<remote_part> remote_part_;
  std::size_t remote_under_way_ = 0;
  std::optional<connection_regions> regions_;
  operation_list active_; // the user's operations, by id
  // Those that have ended because the peer has said goodbye. A program that learns of it may close
  // the connection at once, and the peer waits for this side's goodbye.
  operation_list told_later_;
  bool hold_is_over_ = false;
  free_list<message_pull> pulls_;
  slow_allocations& allocations_;            // used until the link has stopped
  std::shared_ptr<slow_allocation> to_come_; // memory for the next message to be read
  tally messages_sent_, messages_received_, rendezvous_sent_, rendezvous_received_;
  tally remote_operations_, remote_bytes_;
};

} // namespace asio_rdma::detail
