// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

/// The messages (SEND) between client and server, beside the file's bytes (RDMA WRITE). A message
/// is a header (magic, version, type, length of the whole) and the values below in their order, all
/// little-endian, each type of one size.
///
///   client   offer ->            may I write this file?
///   server         <- ready      write it here: a ring of `window` slots of `chunk` bytes
///   client   filled ->           this slot holds the next bytes of the file; before it, by RDMA
///                                WRITE, the bytes themselves
///   server         <- emptied    this slot may be written again
///   client   finish ->           that was all of it, with this hash
///   server         <- storing    the disk is at work; again and again until
///   server         <- stored     the file has its name, and this hash
///   either   failed              the copy ends, for this reason
namespace protocol {

using sha256 = std::array<std::byte, 32>;

constexpr std::uint16_t default_port = 7471;
constexpr std::uint32_t max_window = 64;
constexpr std::uint32_t min_chunk = 4096;
constexpr std::uint32_t max_chunk = 16 * 1024 * 1024;
constexpr std::uint64_t max_file_size = std::uint64_t(1) << 62;
constexpr std::size_t max_name = 255;

enum class reason : std::uint8_t {
  unknown,
  protocol,    ///< The peer broke the protocol.
  no_space,    ///< For the file, at the server.
  no_access,   ///< The server may not write there.
  not_a_file,  ///< An object of that name at the server is not a regular file.
  io,          ///< Reading or writing the file failed.
  changed,     ///< The file changed while it was copied.
  different,   ///< The hashes differ.
  interrupted, ///< By a signal.
  last = interrupted
};
/// The reason in words, from the point of view of its sender.
const char* to_string(reason r);

struct offer {
  std::uint64_t size = 0;
  std::uint32_t chunk = 0;  ///< Bytes; the client's largest write at a time.
  std::uint32_t window = 0; ///< Slots; likewise.
  std::string name;
};
struct ready {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t chunk = 0;
  std::uint32_t window = 0;
};
struct filled {
  std::uint32_t slot = 0;
  std::uint32_t bytes = 0;
};
struct emptied {
  std::uint32_t slot = 0;
};
struct finish {
  sha256 hash{};
};
struct storing {};
struct stored {
  sha256 hash{};
};
struct failed {
  reason why = reason::unknown;
};

using message = std::variant<offer, ready, filled, emptied, finish, storing, stored, failed>;

constexpr std::size_t max_message_size = 8 + 8 + 4 + 4 + 1 + max_name;

/// Whether a file may have this name: a name within a folder, of printable characters.
bool is_name(const std::string& name);

/// Writes the message to `to` and returns its size.
std::size_t encode(const message& m, std::span<std::byte, max_message_size> to);
/// Decodes a message and checks every byte. Empty if `bytes` is no message of this version with
/// values in range.
std::optional<message> decode(std::span<const std::byte> bytes);

} // namespace protocol
