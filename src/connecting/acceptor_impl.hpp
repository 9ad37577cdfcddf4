// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor_statistics.hpp>

#include "connecting/cm_connection.hpp"
#include "core/background_timer.hpp"

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace asio_rdma::detail {

/// The logic of `basic_acceptor`: a listening id, the requests that no operation has taken, and the
/// operations that wait for a request. One of the two lists is empty, unless as many handshakes are
/// under way as the options allow, or a request is put to the program (`accept_options::admit`).
class acceptor_impl final : public cm_handler {
public:
  /// Requests that are answered or refused in one turn of the context (docs/security.md).
  static constexpr std::size_t most_a_turn = 16;

  acceptor_impl(cm_service& service, asio::any_io_executor executor);
  ~acceptor_impl();

  error_code open(asio::ip::tcp::endpoint endpoint, const acceptor_options& options);
  error_code adopt(rdma_cm_id* id, const acceptor_options& options);
  rdma_cm_id* native_handle() const;
  asio::ip::tcp::endpoint local_endpoint() const;
  acceptor_statistics statistics() const;
  bool start(accept_operation& op);
  void cancel();
  void cancel(std::uint64_t operation_id, asio::cancellation_type_t type);
  void close();
  void close(const cm_service&) override { close(); }
  std::uint64_t next_id() noexcept { return ++ids_; }
  std::uint64_t cancels() const;
  /// Whether an error of accepting concerns one connector only.
  bool is_of_connector(const error_code& ec) const;

  void on_cm_event(const cm_event& event) override;
  bool on_request(const cm_event& event) override;

private:
  using request_list = std::list<std::shared_ptr<cm_connection>>;
  struct accepting {
    std::uint64_t operation_id;
    std::weak_ptr<cm_connection> connection;
  };

  /// Actions to be done after the mutex is unlocked.
  struct leftovers {
    operation_list done;
    request_list ended;
    std::vector<std::shared_ptr<cm_connection>> silent; // give way to others
    std::shared_ptr<acceptor_impl> asks;                // puts a request to the program
    std::uint64_t question = 0;
    std::shared_ptr<acceptor_impl> goes_on; // with further requests, in another turn
  };

  error_code set(const acceptor_options& options);
  error_code listen();
  error_code check_start(const accept_operation& op) const;
  bool has_room();
  void match(leftovers& left, const cm_connection* fresh = nullptr) noexcept;
  request_list::iterator next_request(const ending_ids::crowded_sources& crowded) noexcept;
  request_list::iterator request_to_reject(const cm_connection& newcomer) noexcept;
  void make_way(leftovers& left, const ending_ids::crowded_sources& crowded) noexcept;
  std::size_t count_answerable(const ending_ids::crowded_sources& crowded) const noexcept;
  void look_again() noexcept;
  static void settle(completion_service& operations, leftovers& left) noexcept;
  static void put_off(completion_service& operations, leftovers& left) noexcept;
  void go_on() noexcept;
  static void settle_all(completion_service& operations, leftovers& left) noexcept;
  void cancel(const error_code& why);
  void close(const error_code& why);
  /// The result of giving a request to an operation.
  enum class served {
    going_on, ///< The operation ends when the request is connected.
    given,    ///< The operation has completed with the request.
    unfit,    ///< The operation has completed because it can take no request.
    failed,   ///< The operation has completed; the request must be ended.
    refused   ///< The operation continues to wait; the request must be ended.
  };
  served serve(accept_operation& op, const std::shared_ptr<cm_connection>& connection) noexcept;
  void serve(operation_list& one_operation, request_list& one, leftovers& left) noexcept;
  void put_back(served how, operation_list& one_operation, request_list& one,
                leftovers& left) noexcept;

  // acceptor_admission.cpp
  static bool must_ask(const accept_operation& op, const cm_connection& connection) noexcept;
  void begin_question(operation_list& one_operation, request_list& one, leftovers& left) noexcept;
  void take_back_question() noexcept;
  static void put_question(completion_service& operations, leftovers& left) noexcept;
  void ask(std::uint64_t number) noexcept;
  void end_question(std::uint64_t number, std::optional<bool> admitted, admit_function& asked,
                    leftovers& left) noexcept;

  cm_service& service_;
  asio::any_io_executor executor_;
  std::atomic<std::uint64_t> ids_{0};
  const std::shared_ptr<acceptor_tallies> tallies_ = std::make_shared<acceptor_tallies>();

  mutable checked_mutex mutex_;
  rdma_cm_id* id_ = nullptr;
  error_code closed_by_;
  std::uint64_t cancels_ = 0;
  std::size_t backlog_ = 0;
  std::size_t most_handshakes_ = 0;
  std::chrono::milliseconds patience_{};
  std::unique_ptr<background_timer> timer_; // made when requests first wait for handshakes
  pending_handshakes::clock::time_point newest_first_until_{};
  static constexpr auto at_no_time = pending_handshakes::clock::time_point::max();
  pending_handshakes::clock::time_point look_at_ = at_no_time;
  request_list requests_;
  asio::ip::tcp::endpoint last_incompatible_; // see `acceptor_statistics`
  error_code last_reason_;
  bool goes_on_ = false;    // with further requests, in another turn
  std::uint64_t turn_ = 0;  // in which the last request arrived
  std::size_t in_turn_ = 0; // requests that were answered or refused in it
  std::size_t asked_ = 0;   // index of the request that was last checked for withdrawal
  operation_list waiting_;
  // The request that is put to the program, and the operation that has taken it; empty if none.
  request_list asked_request_;
  operation_list asked_operation_;
  std::uint64_t questions_ = 0;      // the number of the question, and how often one was taken back
  std::vector<accepting> accepting_; // pending accepts, to be cancelled
};

} // namespace asio_rdma::detail
