// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/log.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace asio_rdma::detail {

/// The log, as the library's sources use it. Without a log function, `logs` is false for each
/// severity. Text is composed only if it is true:
///
///   if (logs(log_severity::warning)) [[unlikely]]
///     write_log({.severity = log_severity::warning, .event = log_event::end, …}, "…", …);
inline constinit std::atomic<std::uint8_t> least_logged{0xff};

inline bool logs(log_severity s) noexcept {
  return static_cast<std::uint8_t>(s) >= least_logged.load(std::memory_order_relaxed);
}

/// A record without its text.
struct log_facts {
  log_severity severity;
  log_event event;
  error_code error = {};
  std::uint32_t queue_pair = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::uint32_t vendor_error = 0;
};

/// Calls the log function, unless this thread is in a call of it. The text is at most 400 bytes,
/// and the message of the error is added.
[[gnu::cold, gnu::format(printf, 2, 3)]] void write_log(const log_facts& facts, const char* format,
                                                        ...) noexcept;

/// `log_options::long_wait`.
std::chrono::milliseconds longest_unlogged_wait() noexcept;

/// An address and port as text, which allocates nothing.
class endpoint_text {
public:
  explicit endpoint_text(const asio::ip::tcp::endpoint& e) noexcept;
  const char* c_str() const noexcept { return text_.data(); }

private:
  std::array<char, 80> text_;
};

} // namespace asio_rdma::detail
