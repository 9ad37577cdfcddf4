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

namespace asio_rdma::detail {

/// The second part of a handshake. `max_reads` travels in the first one.
struct handshake_address {
  queue_pair_address address;
  ibv_qp_type type = IBV_QPT_RC;
};

/// What two sides tell each other before they are connected. Little-endian, of fixed size, so that
/// it fits the private data of a connection request (56 bytes on InfiniBand, rdma_connect(3)):
///
///   0  magic "ARDM"          4  version       5  kind         6  flags (16 bits)
///   8  receives (32)        12  receive size (32)
///  16  reads and atomics that this side answers at a time     17  atomic capability
///  18  receives promised at first (16); 0: all   20  zero (4 bytes)
///
/// and, if the flag `address` is set, as where no connection manager carries it:
///
///  24  queue pair number (24 of 32)   28  first packet sequence number (24 of 32)
///  32  GID (16 bytes)       48  LID (16)     50  path MTU (ibv_mtu)
///  51  queue pair type (ibv_qp_type)         52  zero (4 bytes)
struct handshake {
  enum class kind : std::uint8_t { raw = 0, message = 1, stream = 2 };

  static constexpr std::size_t base_size = 24;
  static constexpr std::size_t full_size = 56;
  static constexpr std::size_t prefix_size = 5; ///< Magic and version: all versions begin so.
  static constexpr std::uint8_t version = 1;

  kind what = kind::raw;
  std::uint32_t receives = 0;     ///< Receives posted, each of `receive_size` bytes; of shared ones
  std::uint32_t receive_size = 0; ///< the most that it may have.
  std::uint16_t promise = 0;      ///< So many at first, if they are shared; 0: all.
  std::uint8_t max_reads = 0;
  ibv_atomic_cap atomics = IBV_ATOMIC_NONE;
  std::optional<handshake_address> address;

  std::size_t size() const noexcept { return address ? full_size : base_size; }
};

using handshake_bytes = std::array<std::byte, handshake::full_size>;

/// The record in the first `h.size()` bytes; the others are zero.
handshake_bytes encode(const handshake& h) noexcept;

/// Checks every byte of a record. A transport may have padded one without an address by zeros.
/// Errors: `error::incompatible_peer`.
error_code decode(std::span<const std::byte> bytes, handshake& result) noexcept;

/// Whether these first bytes may begin a record of this version.
bool is_handshake_prefix(std::span<const std::byte> bytes) noexcept;

/// How a side ends an exchange, in eight bytes: magic "ARDV", verdict, three bytes zero.
enum class verdict : std::uint8_t {
  ready = 0,        ///< The queue pair is connected and may be sent to.
  incompatible = 1, ///< The peer's record is not one of this version, or its values do not fit.
  unsupported = 2,  ///< The device cannot be connected without its connection manager.
  failed = 3        ///< The queue pair could not be connected.
};

constexpr std::size_t verdict_size = 8;
std::array<std::byte, verdict_size> encode(verdict v) noexcept;
/// Errors: `error::incompatible_peer`.
error_code decode(std::span<const std::byte, verdict_size> bytes, verdict& result) noexcept;

/// The steps by which two sides connect their queue pairs over a stream: each writes its record,
/// reads the other's, connects, writes its verdict and reads the other's. The two are alike.
/// Does no I/O: `next` says what to do, and what came of it is told by the `on_…` functions.
class exchange_steps {
public:
  enum class action {
    write,   ///< All of `output()`, then `on_written`.
    read,    ///< Some of `input()`, then `on_read`.
    connect, ///< To `peer()`, which has an address, then `on_connected`.
    finish   ///< With `result()`.
  };

  /// `why` tells why `local` has no address, if it has none.
  explicit exchange_steps(const handshake& local, error_code why = {});

  action next() const noexcept { return next_; }
  asio::const_buffer output() const noexcept;
  asio::mutable_buffer input() noexcept;
  const handshake& peer() const noexcept { return peer_; }

  void on_written(const error_code& ec);
  void on_read(const error_code& ec, std::size_t bytes);
  /// `error::incompatible_peer` if the peer's values do not fit, which the peer hears too.
  void on_connected(const error_code& ec);

  /// The first error: this side's own before what the peer says.
  const error_code& result() const noexcept { return result_; }
  /// Whether the queue pair was connected: if the result is an error it has to fail.
  bool connected() const noexcept { return connected_; }

private:
  void on_record();
  void on_verdict();
  void conclude(verdict v, const error_code& ec);

  handshake local_;
  handshake peer_;
  action next_ = action::write;
  bool concluded_ = false; // this side's verdict is what is written, or has been
  bool in_step_ = true;    // the peer speaks the protocol, so its verdict will follow
  bool connected_ = false;
  error_code result_;
  handshake_bytes output_;
  std::array<std::byte, verdict_size> verdict_{};
  handshake_bytes input_{};
  std::size_t received_ = 0;
};

} // namespace asio_rdma::detail
