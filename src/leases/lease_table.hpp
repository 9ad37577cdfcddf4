// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/leases/lease_operations.hpp>

#include "leases/region_inbox.hpp"

#include <optional>
#include <unordered_map>
#include <vector>

namespace asio_rdma::detail {

/// The user's side of remote memory: what this side has been granted, and until when. A lease
/// counts from its request, so it ends before the owner ends it. A lent region with a finite lease
/// begins when it is first renewed.
class lease_table final : private link_part {
public:
  lease_table(frame_link& link, region_inbox& inbox);

  /// An operation that has completed, or null.
  lease_request* next();
  using link_part::may_act; ///< Whether `next` may have something.

  void start(lease_request& op, protocol_clock::time_point now);
  /// Cancels a request. Returns true if it was removed; `op` is the driver's again, and a later
  /// grant for it is released. Returns false if `op` has completed or is a `give`.
  bool cancel(lease_request& op);
  /// The result that `cancel` would have.
  bool may_cancel(const lease_request& op) const noexcept;

  /// Whether the lease may be used: no error, `lease_expired` or `lease_revoked`.
  error_code check(std::uint32_t id, protocol_clock::time_point now) const;
  /// The present state of the lease, if it exists.
  std::optional<remote_lease> get(std::uint32_t id) const;
  /// Releases a lease without handles. The owner is notified, unless it has ended the grant.
  void release(std::uint32_t id);

  std::size_t size() const noexcept { return leases_.size(); } ///< Not released.

private:
  struct lease {
    remote_lease what;
    std::uint32_t grant; // the owner's number
    error_code ended;
    bool begun = true;
  };
  struct request_slot {
    lease_request* op = nullptr;
    bool used = false;
    bool renew = false;
    std::uint32_t grant = 0; // the grant that is renewed
    std::uint16_t generation = 0;
  };

  bool needs_time() const noexcept override { return true; }
  bool next_control(outgoing_frame& f) override;
  bool next_data(outgoing_frame& f) override;
  bool has_data() const override { return !gifts_.empty(); }
  void on_sent(const frame_header& header, frame_operation* op) override;
  void on_dropped(const frame_header& header, frame_operation* op, const error_code& ec) override;
  disposition on_frame(const frame_header& header, std::span<const std::byte> payload,
                       std::uint32_t slot, protocol_clock::time_point now) override;
  void on_closing() override;
  bool drained() const override;
  bool on_goodbye() override;
  void on_stopped(const error_code& ec) override;

  disposition on_answer(const frame_header& header, std::span<const std::byte> payload,
                        protocol_clock::time_point now);
  void on_renewed(lease_request& op, const lease_payload& p);
  void end_lease(std::uint32_t grant, const error_code& why, bool yields);
  lease& add(const grant_payload& p, protocol_clock::time_point until);
  struct release_frame {
    frame_type type; // `release` or `yielded`
    std::uint32_t grant;
  };
  void reserve_release();
  void tell(const release_frame& f) noexcept;
  void pace_regions() noexcept;
  disposition on_lent(const frame_header& header, std::span<const std::byte> payload,
                      std::uint32_t slot, protocol_clock::time_point now);
  bool is_live(std::uint32_t grant, protocol_clock::time_point now);
  void finish(lease_request& op, const error_code& ec);
  void finish_all(frame_operation_list& from, const error_code& ec);
  void end_asked(const error_code& ec);

  region_inbox& inbox_;
  std::unordered_map<std::uint32_t, lease> leases_;
  std::unordered_map<std::uint32_t, std::uint32_t>
      live_; // by the owner's number, until the lease has ended
  std::uint32_t last_id_ = 0;
  std::size_t most_asked_; // the owner keeps an answer for each
  std::vector<request_slot> asked_;
  std::vector<std::uint16_t> free_;
  frame_operation_list queued_, gifts_, done_;
  // To be sent to the owner. There is room for all leases, so that a release cannot fail.
  boost::circular_buffer<release_frame> releases_;
  std::size_t most_releases_; // that wait while regions are handed out
  error_code closed_;         // why nothing more can be requested
};

} // namespace asio_rdma::detail
