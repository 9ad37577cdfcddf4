// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/error.hpp>
#include <asio_rdma/queue_pair_options.hpp>
#include <boost/asio/buffer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace asio_rdma::detail {

/// The optional second part of a handshake. `max_reads` is in the first part.
struct handshake_address {
  queue_pair_address address;
  ibv_qp_type type = IBV_QPT_RC;
};

/// The values that the two sides exchange before they are connected. Little-endian, of fixed size,
/// so that they fit the private data of a connection request (56 bytes on InfiniBand,
/// rdma_connect(3)):
///
///   0  magic "ARDM"          4  version       5  kind         6  flags (16 bits)
///   8  receives (32)        12  receive size (32)
///  16  reads and atomics that this side answers at a time     17  atomic capability
///  18  receives promised at first (16); 0: all
///  20  size of the program's data (8), which follow the record   21  zero (3 bytes)
///
/// Only a request of rdma_cm has data of the program's, as far as they fit the private data.
///
/// If the flag `address` is set, because no connection manager carries the address:
///
///  24  queue pair number (24 of 32)   28  first packet sequence number (24 of 32)
///  32  GID (16 bytes)       48  LID (16)     50  path MTU (ibv_mtu)
///  51  queue pair type (ibv_qp_type)         52  zero (4 bytes)
struct handshake {
  enum class kind : std::uint8_t { raw = 0, message = 1, stream = 2 };

  static constexpr std::size_t base_size = 24;
  static constexpr std::size_t full_size = 56;
  static constexpr std::size_t prefix_size = 5; ///< Magic and version, the same in all versions.
  static constexpr std::uint8_t version = 5;
  static constexpr std::size_t most_data = 227; ///< Of the program's. Most devices take fewer.

  kind what = kind::raw;
  std::uint32_t receives = 0;     ///< Posted receives; of shared ones, the most
  std::uint32_t receive_size = 0; ///< for this link. Each has `receive_size` bytes.
  std::uint16_t promise = 0;      ///< Shared receives promised at first; 0: all.
  std::uint8_t max_reads = 0;
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  std::optional<handshake_address> address;

  std::size_t size() const noexcept { return address ? full_size : base_size; }
};

using handshake_bytes = std::array<std::byte, handshake::full_size>;

/// Encodes the record in the first `h.size()` bytes; the rest is zero.
handshake_bytes encode(const handshake& h) noexcept;

/// Checks every byte of a record. A record without an address may be followed by data of the
/// program's, and padded with zeros by the transport. Errors: `error::incompatible_peer`.
error_code decode(std::span<const std::byte> bytes, handshake& result) noexcept;

/// Appends data of the program's, at most `most_data` bytes, to a record without an address.
std::vector<std::byte> with_data(std::vector<std::byte> record, std::span<const std::byte> data);
/// Whether these private data are a valid record without an address.
bool is_record(std::span<const std::byte> bytes) noexcept;
/// The program's part of private data: the data behind the record, or all bytes if there is none.
std::span<const std::byte> program_data(std::span<const std::byte> bytes) noexcept;

/// Whether these bytes can be the beginning of a record of this version.
bool is_handshake_prefix(std::span<const std::byte> bytes) noexcept;

/// `error::incompatible_peer` for a peer's record. Its text has the versions of both sides if they
/// differ, else the kinds of both objects, if `own` is given and they differ.
error_code incompatible(std::span<const std::byte> record,
                        std::optional<handshake::kind> own = std::nullopt) noexcept;

/// The end of an exchange on one side, in eight bytes: magic "ARDV", verdict, three bytes zero.
enum class verdict : std::uint8_t {
  ready = 0,        ///< The queue pair is connected and can receive.
  incompatible = 1, ///< The peer's record is not of this version, or its values do not fit.
  unsupported = 2,  ///< The device can only be connected by its connection manager.
  failed = 3        ///< The queue pair could not be connected.
};

constexpr std::size_t verdict_size = 8;
std::array<std::byte, verdict_size> encode(verdict v) noexcept;
/// Errors: `error::incompatible_peer`.
error_code decode(std::span<const std::byte, verdict_size> bytes, verdict& result) noexcept;

/// The answer of rdma_cm to a record that does not fit: `verdict::incompatible`, and the record of
/// this side. Earlier releases send and read the verdict only.
using refusal_bytes = std::array<std::byte, verdict_size + handshake::base_size>;
refusal_bytes encode_refusal(std::span<const std::byte> own_record) noexcept;
/// Whether private data are such an answer, and the error for a connector whose object is `own`.
bool decode_refusal(std::span<const std::byte> bytes, handshake::kind own,
                    error_code& result) noexcept;

/// The steps that connect two queue pairs over a stream. Each side writes its record, reads that of
/// the peer, connects, writes its verdict and reads that of the peer. Both sides do the same. Does
/// no I/O: `next` returns the next step, and the `on_…` functions report its result.
class exchange_steps {
public:
  enum class action {
    write,   ///< Write all of `output()`; then call `on_written`.
    read,    ///< Read some of `input()`; then call `on_read`.
    connect, ///< Connect to `peer()`, which has an address; then call `on_connected`.
    finish   ///< Complete with `result()`.
  };

  /// `why`: the reason if `local` has no address.
  explicit exchange_steps(const handshake& local, error_code why = {});

  action next() const noexcept { return next_; }
  asio::const_buffer output() const noexcept;
  asio::mutable_buffer input() noexcept;
  const handshake& peer() const noexcept { return peer_; }

  void on_written(const error_code& ec);
  void on_read(const error_code& ec, std::size_t bytes);
  /// Reports that the queue pair was connected, or an error. `error::incompatible_peer` means that
  /// the peer's values do not fit, and is also reported to the peer.
  void on_connected(const error_code& ec);

  /// The first error. This side's error takes precedence over the peer's verdict.
  const error_code& result() const noexcept { return result_; }
  /// Whether the queue pair was connected. If `result` is an error, the queue pair must then fail.
  bool connected() const noexcept { return connected_; }

private:
  void on_record();
  void on_verdict();
  void conclude(verdict v, const error_code& ec);

  handshake local_;
  handshake peer_;
  action next_ = action::write;
  bool concluded_ = false; // this side's verdict is being written, or was
  bool in_step_ = true;    // the peer follows the protocol, so it will send a verdict
  bool connected_ = false;
  error_code result_;
  handshake_bytes output_;
  std::array<std::byte, verdict_size> verdict_{};
  handshake_bytes input_{};
  std::size_t received_ = 0;
};

} // namespace asio_rdma::detail
