// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/region_inbox.hpp>

#include <optional>
#include <unordered_map>
#include <vector>

namespace asio_rdma::detail {

/// Memory of the peer that this side may reach.
struct remote_lease {
  std::uint32_t id = 0; ///< This side's: the owner's number is another's once the lease has ended.
  remote_buffer memory;
  remote_rights rights = remote_rights::none;
  protocol_clock::time_point until = protocol_clock::time_point::max();
};

/// Something asked of the memory's owner, or handed to him. The driver derives its operation from
/// it.
class lease_request : public frame_operation {
public:
  enum class kind {
    memory, ///< `bytes` with `rights` for `lease`; gives `result`.
    renew,  ///< The lease `id` for another `lease`; gives `result`.
    give    ///< Hands the lease `id` back to the memory's owner, who receives it as a region.
  };

  kind what = kind::memory;
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
  remote_rights rights = remote_rights::none;
  std::chrono::microseconds lease{}; ///< 0 for what the owner gives by default.

  error_code ec; ///< The result: a refusal by `to_error`, `lease_expired` and the like.
  remote_lease result;

protected:
  ~lease_request() = default;

private:
  friend class lease_table;
  enum class state { idle, queued, asked, done };
  state state_ = state::idle;
  std::uint32_t grant_ = 0; // the owner's number of `id`
  protocol_clock::time_point asked_;
};

/// The peer's side of remote memory: what it has been given, and until when. A lease counts from
/// when it was asked for, and so ends before the owner ends it. One that was lent unasked, and not
/// for good, begins when it is renewed.
class lease_table final : private link_part {
public:
  lease_table(frame_link& link, region_inbox& inbox);

  /// An operation that is complete, or none.
  lease_request* next();

  void start(lease_request& op, protocol_clock::time_point now);
  /// Takes `op` out: true, and it is the driver's again. What the owner grants after that is
  /// released. False if it is complete, or has been handed to the owner.
  bool cancel(lease_request& op);
  /// What `cancel` would say.
  bool may_cancel(const lease_request& op) const noexcept;

  /// Whether the lease may be used: nothing, `lease_expired` or `lease_revoked`.
  error_code check(std::uint32_t id, protocol_clock::time_point now) const;
  /// The lease as it stands, if it is one.
  std::optional<remote_lease> get(std::uint32_t id) const;
  /// The last handle is gone: the owner is told, if he does not know.
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
    std::uint32_t grant = 0; // that is renewed
    std::uint16_t generation = 0;
  };
  using list = boost::intrusive::list<frame_operation, boost::intrusive::constant_time_size<false>>;

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
  lease& add(const grant_payload& p, protocol_clock::time_point until);
  void reserve_release();
  disposition on_lent(std::span<const std::byte> payload, std::uint32_t slot,
                      protocol_clock::time_point now);
  bool is_live(std::uint32_t grant, protocol_clock::time_point now);
  void finish(lease_request& op, const error_code& ec);
  void finish_all(list& from, const error_code& ec);
  void end_asked(const error_code& ec);

  region_inbox& inbox_;
  std::unordered_map<std::uint32_t, lease> leases_;
  std::unordered_map<std::uint32_t, std::uint32_t>
      live_; // by the owner's number, until it has ended
  std::uint32_t last_id_ = 0;
  std::size_t most_asked_; // the owner keeps an answer for each
  std::vector<request_slot> asked_;
  std::vector<std::uint16_t> free_;
  list queued_, gifts_, done_;
  // The owner is to be told of. With room for all leases, so that giving one up cannot fail.
  boost::circular_buffer<std::uint32_t> releases_;
  error_code closed_; // why nothing more can be asked
};

} // namespace asio_rdma::detail
