// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/link_impl.hpp>
#include <asio_rdma/detail/message_protocol.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/message.hpp>
#include <boost/asio/cancellation_type.hpp>

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// What a user wants sent: views of memory, registered or not, or one owning buffer.
struct payload {
  struct part {
    const void* data;
    std::size_t bytes;
    std::uint32_t lkey;
  };

  const part* parts = nullptr;
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  bool registered = true; ///< All the parts, so lkeys hold.
  bool too_many = false;
  const registered_buffer* owner = nullptr; ///< Then there are no parts.
};

/// A user's operation that waits for a message of his to be sent.
class message_send : public operation {
public:
  using operation::operation;
};

/// A user's operation that waits for a message or for immediate data.
class message_receive : public operation {
public:
  explicit message_receive(function f) noexcept : operation(f) {}

  /// As the protocol knows it.
  struct wait final : message_in {
    message_receive* op = nullptr;
  };
  wait request;

  message result;
  bool owning = true;         ///< Gives `result`; else the bytes go to `targets`.
  ibv_sge* targets = nullptr; ///< Addresses and lengths only.
  std::size_t target_count = 0;
  std::uint64_t size = 0; ///< Of the message.
};

/// A message on its way. The protocol knows it, and it outlives the user's operation where the
/// memory is the library's to keep.
struct message_record final : message_out {
  static constexpr std::size_t max_views = 3;

  message_send* waiter = nullptr;
  registered_buffer memory; ///< Owned, or a copy of what was not registered.
  buffer_access access;     ///< To the user's own buffer.
  std::array<ibv_sge, max_views> views{};
  std::uint32_t view_count = 0; ///< Else the memory is what is sent.
  bool caller_keeps = false;    ///< The views are of the caller's memory.
  memory_region exposed;        ///< For the peer to read.
  std::array<std::byte, frame_transfer::payload_room> small;
  bool is_small = false;
  message_record* next_free = nullptr;
};

/// The logic of `basic_connection`: messages on a link.
class connection_impl final : public link_impl {
public:
  connection_impl(asio::execution_context& context, const memory_pool& pool,
                  const connection_options& options);
  ~connection_impl();

  /// Each gives true, or false with the error in the operation, which stays the caller's then.
  bool start(message_send& op, const payload& p, std::optional<std::uint32_t> immediate);
  bool start(message_receive& op);
  void cancel(std::uint64_t id, asio::cancellation_type_t type);
  /// Ends every wait for a message; what is being sent goes on. No message is lost.
  void cancel_receives();

private:
  struct pull;

  void make_parts(frame_link& link, const handshake& peer) override;
  bool run_parts(operation_list& done) override;
  void add_payload(const outgoing_frame& frame, frame_transfer& to) override;

  message_record& take_record();
  void give_back(message_record& r) noexcept;
  error_code fill(message_record& r, const payload& p);
  void expose(message_record& r);
  void complete_send(message_record& r, operation_list& done);
  void complete_receive(message_receive& r, operation_list& done);
  void begin_pull(const message_action& a);
  void post_reads(pull& p);
  void read_done(pull& p, const error_code& ec);

  std::optional<message_protocol> messages_;
  std::deque<message_record> records_;
  message_record* free_records_ = nullptr;
  operation_list active_; // the user's operations, to be found by id
  std::vector<std::unique_ptr<pull>> pulls_;
};

} // namespace asio_rdma::detail
