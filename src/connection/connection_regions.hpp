// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/connection_options.hpp>
#include <boost/asio/cancellation_type.hpp>

#include "connection/connection_records.hpp"
#include "connection/loan.hpp"
#include "core/free_list.hpp"
#include "leases/grant_table.hpp"
#include "leases/lease_table.hpp"
#include "leases/region_inbox.hpp"
#include "memory/slow_allocation.hpp"
#include "verbs/grant_key.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace asio_rdma::detail {

class connection_regions;
class link_impl;

/// The work request that binds the memory window of a grant, if its key has one.
struct grant_bind final : link_transfer {
  grant_bind(connection_regions& regions, grant_record& r) noexcept;

  connection_regions& owner;
  grant_record& grant;
};

/// The allocation of memory that the peer has requested: it is cleared, and registered by a key of
/// its own.
class grant_allocation final : public slow_allocation {
public:
  grant_allocation(const memory_pool& pool, std::size_t bytes, access rights)
      : slow_allocation(pool, bytes), rights_(rights) {}

  /// Called once, after `is_done`.
  grant_key take_key() noexcept { return std::move(key_); }

private:
  void prepare(const registered_buffer& memory, error_code& ec) noexcept override;

  const access rights_;
  grant_key key_; // destroyed before the memory
};

/// Memory that the peer may access, by a key of its own.
struct grant_record final : lend_request {
  explicit grant_record(connection_regions& regions) noexcept;

  registered_buffer memory;
  std::shared_ptr<grant_allocation> to_come; ///< Null unless a background thread allocates it.
  buffer_access access;                      ///< Access to lent memory.
  loan lent;                                 ///< Of lent memory.
  grant_key key;
  grant_bind bind;
  region_operation* waiter = nullptr;
  bool lending = false;  ///< Until the protocol reports `lent`.
  bool returned = false; ///< The memory has been handed back; no operation has received it yet.
  std::uint32_t id = 0;
  grant_record* next_free = nullptr; ///< Or the next record whose memory has been handed back.
};

/// A lease that is being handed back to the owner.
struct gift_record final : lease_request {
  region_operation* waiter = nullptr;
  gift_record* next_free = nullptr;
};

/// The remote memory of a connection, for both sides: carries out the protocol's actions on memory
/// and keys. Called with the link locked.
class connection_regions {
public:
  connection_regions(connection_impl& connection, frame_link& frames,
                     const remote_memory_options& options);

  void start(region_operation& op);
  void lend(region_operation& op, const registered_buffer& memory);
  void give(region_operation& op);
  bool cancel(region_operation& op, asio::cancellation_type_t type, operation_list& done);
  /// Carries out the pending actions. Returns true if there were any.
  bool run(operation_list& done);

  error_code check_lease(std::uint32_t id) const {
    return leases_.check(id, protocol_clock::now());
  }
  protocol_clock::time_point deadline(std::uint32_t id) const;
  void release(std::uint32_t id) { leases_.release(id); }

  /// Revokes the grants of `memory`, or all if it is null. The keys end with the next `run`, or
  /// with `run_grants` if no `run` follows.
  std::size_t revoke(const registered_buffer* memory);
  /// Revokes them with a grace; `op` completes when their keys have ended.
  void revoke(region_operation& op, const registered_buffer* memory,
              std::chrono::microseconds grace);
  bool run_grants(operation_list& done);
  /// Looks for memory that background threads have allocated.
  void look_for_memory();

private:
  friend grant_bind;   // calls `bound` when the bind has completed
  friend grant_record; // its loan belongs to the connection

  /// Calls `f` with each number of a grant of `memory`, or of all memory if it is null.
  template <class Function>
  void for_each_grant(const registered_buffer* memory, Function&& f) const;
  void give_back(grant_record& r) noexcept;
  void reserve_place();
  void make_key(const grant_action& a);
  void key_made(grant_record& r, error_code ec);
  void drop_to_come() noexcept;
  error_code bind(grant_record& r);
  void bound(grant_record& r);
  void made(grant_record& r);
  void not_made(grant_record& r, const error_code& ec);
  void end_key(const grant_action& a);
  void set_timer();
  void received(region_operation& op, operation_list& done);
  void leased(region_operation& op, operation_list& done);
  void complete(region_operation& op, const error_code& ec, operation_list& done);

  connection_impl& connection_;
  link_impl& link_;
  region_inbox inbox_;
  grant_table grants_;
  lease_table leases_;
  free_list<grant_record> grant_records_;
  bool new_grants_ = false;            // the next expiry may be earlier than the timer
  std::vector<grant_record*> granted_; // those whose key is made or being made, by their place in
                                       // the table
  std::size_t to_come_ = 0;            // records whose memory a background thread allocates
  grant_record* returned_ = nullptr;   // those whose memory has been handed back, linked by
                                       // `next_free`
  free_list<gift_record> gift_records_;
};

} // namespace asio_rdma::detail
