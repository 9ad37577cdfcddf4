// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/leases/lease_operations.hpp>

#include "leases/region_inbox.hpp"

#include <vector>

namespace asio_rdma::detail {

/// A loan of this side's memory that the peer has not asked for. The driver derives its operation
/// from it.
class lend_request : public frame_operation {
public:
  std::uint64_t bytes = 0;
  remote_rights rights = remote_rights::none;
  std::chrono::microseconds lease = no_lease;
  std::uint64_t tag = 0; ///< For the peer.

  error_code ec;           ///< The result.
  std::uint32_t grant = 0; ///< The grant. If its key was made, its `end` follows in any case.

protected:
  ~lend_request() = default;
};

/// The limits of a peer's requests.
struct grant_limits {
  remote_rights rights = remote_rights::none;
  std::uint64_t bytes = 0;  ///< Granted at a time.
  std::uint32_t grants = 0; ///< At a time, at most 65535.
  std::chrono::microseconds default_lease = std::chrono::seconds(10);
  std::chrono::microseconds longest_lease = std::chrono::minutes(10);
  /// How long the key outlives the lease, so that an access that the peer began in time does not
  /// break the connection.
  std::chrono::microseconds grace = std::chrono::milliseconds(500);
};

struct grant_action {
  enum class kind {
    none,
    make, ///< Make a key with `rights` for exactly `bytes` bytes of zeroed memory, or for the
          ///< memory of `lend`. If possible, only the peer's queue pair can use the key. Then, now
          ///< or later, call `made` or `not_made`.
    end,  ///< End the key; call `ended` when it gives no access any more. If `returned`, a
          ///< `region_receive` gets the memory afterwards.
    lent, ///< `lend` has completed.
    recalled ///< `recall` has completed.
  };
  kind what = kind::none;
  std::uint32_t grant = 0;
  std::uint64_t bytes = 0;
  remote_rights rights = remote_rights::none;
  lend_request* lend = nullptr;
  recall_request* recall = nullptr;
  bool returned = false;
};

/// The owner's side of remote memory: which memory the peer may access, and until when. Requested
/// grants and their bytes count until their keys have ended; if the peer has handed the memory
/// back, until the program has received it. A request beyond the limits is denied. A request waits
/// if it fits as soon as keys have ended and operations that already wait have received regions.
class grant_table final : private link_part {
public:
  grant_table(frame_link& link, region_inbox& inbox, const grant_limits& limits);

  grant_action next();
  using link_part::may_act; ///< Whether `next` may have something.

  /// Reports that the key of `grant` has been made; its lease begins now.
  void made(std::uint32_t grant, const remote_buffer& memory, protocol_clock::time_point now);
  /// Reports that the key could not be made. The grant is removed.
  void not_made(std::uint32_t grant, const error_code& ec);
  /// Reports that the key gives no access any more, or that it could not be ended, with the error.
  /// The grant is removed, or kept until `received` if a `region_receive` gets its memory.
  void ended(std::uint32_t grant, const error_code& ec = {});
  /// Reports that the program has received the memory of a grant that was handed back and whose key
  /// has ended without an error.
  void received(std::uint32_t grant);

  /// Revokes a grant: the peer is notified, and `end` follows. If its key is being made, the peer
  /// does not get the grant, and `end` follows after `made`. Returns false if the grant has ended
  /// or was revoked before.
  bool revoke(std::uint32_t grant);
  /// Recalls the grants of `op`. The peer begins no further access, and confirms when its accesses
  /// have ended. `end` follows then, or when `grace` is over; at once if the peer does not have the
  /// grant yet, or if there is no grace. `op` completes when the grants have been removed.
  void recall(recall_request& op, std::chrono::microseconds grace, protocol_clock::time_point now);
  /// Cancels the wait; the grants remain recalled. Returns false if `op` has completed.
  bool cancel(recall_request& op);
  /// Ends the grants whose lease and grace have passed.
  void expire(protocol_clock::time_point now);
  /// The time of the next call of `expire`; `max()` for never.
  protocol_clock::time_point next_expiry() const noexcept;

  void lend(lend_request& op);
  /// Reserves memory for one grant, so that the next `lend` cannot fail.
  void reserve_one();
  /// An upper bound of the lower 16 bits of a grant's number.
  std::size_t places() const noexcept { return grants_.size(); }

  std::uint64_t bytes() const noexcept { return bytes_; }    ///< Of requested grants.
  std::uint32_t grants() const noexcept { return granted_; } ///< Requested grants.
  std::size_t live() const noexcept;                         ///< All grants that have not been
                                                             ///< removed.

private:
  // `kept`: the key has ended, and the inbox has the memory. The peer cannot refer to such a grant.
  enum class state : std::uint8_t { free, making, live, ending, kept };
  struct grant {
    state where = state::free;
    bool returned = false;
    bool revoked = false;   // while its key was being made
    bool notice = false;    // the revocation or the recall must be sent to the peer
    bool told = false;      // the peer has been sent the grant,
    bool recalled = false;  // and must not use it any more,
    bool asked = false;     // and has been sent the recall
    bool confirmed = false; // the peer does not use the grant any more, or never has
    std::uint16_t generation = 0;
    std::uint32_t request = 0; // the number of the peer's request
    std::uint64_t bytes = 0;
    remote_rights rights = remote_rights::none;
    std::chrono::microseconds lease{};
    remote_buffer memory;
    protocol_clock::time_point until = protocol_clock::time_point::max();
    lend_request* lend = nullptr;
    bool on_request = false;
  };
  struct pending {
    std::uint32_t request;
    request_payload what;
  };
  struct answer {
    frame_type type;
    std::uint32_t request;
    std::uint32_t grant = 0;
    refusal why = refusal::memory;
    std::chrono::microseconds lease{};
  };

  bool next_control(outgoing_frame& f) override;
  bool next_data(outgoing_frame& f) override;
  bool has_data() const override { return !lends_.empty(); }
  void on_sent(const frame_header& header, frame_operation* op) override;
  void on_dropped(const frame_header& header, frame_operation* op, const error_code& ec) override;
  disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot, protocol_clock::time_point now) override;
  bool needs_time() const noexcept override { return true; }
  void on_closing() override;
  bool drained() const override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  disposition on_request(const frame_header& header, std::span<const std::byte> payload);
  disposition on_renew(const frame_header& header, std::span<const std::byte> payload,
                       protocol_clock::time_point now);
  void admit();
  bool will_fit(const request_payload& p) const;
  void deny(std::uint32_t request, refusal why);
  bool is_full() const noexcept; // every number is in use
  std::uint32_t add(grant g);
  grant* find(std::uint32_t id) noexcept;
  std::uint32_t id_of(const grant& g) const noexcept;
  void begin_end(grant& g);
  void end_all(bool confirmed);
  void recall(grant& g, std::chrono::microseconds grace, protocol_clock::time_point now);
  void notify(grant& g);
  void settle_recalls(std::uint32_t id, bool confirmed, const error_code& ec);
  void finish(recall_request& op);
  void remove(grant& g, const error_code& ec = {});
  void free_if_done(grant& g);
  void finish(lend_request& op, const error_code& ec);
  std::chrono::microseconds lease_for(std::chrono::microseconds asked) const noexcept;
  protocol_clock::time_point until(protocol_clock::time_point now,
                                   std::chrono::microseconds lease) const noexcept;

  region_inbox& inbox_;
  grant_limits limits_;
  std::vector<grant> grants_;
  std::vector<std::uint16_t> free_;
  // Each has room for all grants, so that ending a grant cannot fail.
  boost::circular_buffer<std::uint32_t> work_; // grants whose `make` or `end` has not been returned
  boost::circular_buffer<std::uint32_t> notices_;
  boost::circular_buffer<pending> pending_;
  boost::circular_buffer<answer> answers_;
  std::size_t unanswered_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t granted_ = 0;
  // Of requested grants whose keys are ending, except those that were handed back.
  std::uint64_t ending_bytes_ = 0;
  std::uint32_t ending_ = 0;
  frame_operation_list lends_; // those whose key is made; to be sent
  frame_operation_list done_lends_;
  frame_operation_list recalls_, done_recalls_;
  error_code closed_;   // why no grants are made any more
  bool silent_ = false; // the peer gets no more frames
};

} // namespace asio_rdma::detail
