// SPDX-License-Identifier: BSL-1.0
// One measurement, as both sides agree on it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace perf {

enum class kind { send, write, read, messages, stream, tcp };
enum class mode { event, adaptive, busy };
enum class metric { latency, bandwidth };

inline constexpr kind all_kinds[] = {kind::send,     kind::write,  kind::read,
                                     kind::messages, kind::stream, kind::tcp};
inline constexpr mode all_modes[] = {mode::event, mode::adaptive, mode::busy};
inline constexpr metric all_metrics[] = {metric::latency, metric::bandwidth};

std::string_view name(kind k);
std::string_view name(mode m);
std::string_view name(metric m);
/// Each throws `std::invalid_argument`, which lists the names, if there is no such name.
kind kind_of(std::string_view text);
mode mode_of(std::string_view text);
metric metric_of(std::string_view text);

/// Whether the latency of a kind is half of a round trip between two programs. Otherwise it is that
/// of a whole operation, in which the peer's program takes no part.
constexpr bool is_half_round_trip(kind k) { return k != kind::write && k != kind::read; }
/// Whether the device places the bytes, so that no program of the far side takes part.
constexpr bool is_one_sided(kind k) { return !is_half_round_trip(k); }

inline constexpr std::uint32_t largest_window = 1024;
inline constexpr double longest_seconds = 600;

struct request {
  kind what = kind::send;
  mode how = mode::event;
  metric of = metric::latency;
  std::uint64_t size = 1;   ///< Bytes of an operation.
  std::uint32_t window = 1; ///< Operations outstanding at a time; 1 for a latency.
  double seconds = 0.2;     ///< Without the warm-up.

  friend bool operator==(const request&, const request&) = default;
};

/// How much memory a side gives to a measurement.
struct memory_limits {
  std::uint64_t size = std::uint64_t(1) << 30;     ///< The largest operation.
  std::uint64_t window = std::uint64_t(256) << 20; ///< All operations of a window.
};

/// The operations of a window that have memory of their own: those that `limits.window` has room
/// for, at least one. Others share it.
std::uint32_t slots(const request& r, const memory_limits& limits);
/// The window within the memory: at least two operations, so that the network is never idle. A TCP
/// socket has one write at a time, because the kernel buffers the bytes.
std::uint32_t window_in_force(const request& r, const memory_limits& limits);

/// A limit of time for a measurement of the request, warm-up included: slow networks have 50 MB/s.
double longest_time(const request& r);

/// The line that a client sends, without its end.
std::string to_line(const request& r);
/// A line of a client. Throws `std::invalid_argument` if it is no request, and `std::out_of_range`
/// if its size is above the limit.
request parse_request(std::string_view line, const memory_limits& limits);

} // namespace perf
