// SPDX-License-Identifier: BSL-1.0
#include "core/logging.hpp"

#include <arpa/inet.h>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace asio_rdma {
namespace detail {
namespace {

// Calls of the function share the mutex; `set_log` has it alone.
struct log_target {
  std::shared_mutex mutex;
  log_function function;
  std::atomic<std::chrono::milliseconds> long_wait{std::chrono::milliseconds(1000)};
};

// Never destroyed: objects of the library may end after static ones.
log_target& target() {
  static log_target& only = *new log_target;
  return only;
}

thread_local bool is_in_log = false;

struct in_log {
  in_log() noexcept { is_in_log = true; }
  in_log(const in_log&) = delete;
  ~in_log() { is_in_log = false; }
};

} // namespace

void write_log(const log_facts& facts, const char* format, ...) noexcept {
  if (is_in_log)
    return;
  char composed[400] = "";
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(composed, sizeof composed, format, arguments);
  va_end(arguments);
  try {
    const in_log guard;
    std::string text = composed;
    if (facts.error)
      text += ": " + facts.error.message();
    const std::shared_lock lock(target().mutex);
    if (!target().function || !logs(facts.severity))
      return;
    target().function({.severity = facts.severity,
                       .event = facts.event,
                       .text = text,
                       .error = facts.error,
                       .queue_pair = facts.queue_pair,
                       .status = facts.status,
                       .vendor_error = facts.vendor_error});
  } catch (...) {
    // A lack of memory, or an exception of the function. The log must not disturb the library.
  }
}

std::chrono::milliseconds longest_unlogged_wait() noexcept { return target().long_wait.load(); }

endpoint_text::endpoint_text(const asio::ip::tcp::endpoint& e) noexcept : text_{} {
  std::array<char, INET6_ADDRSTRLEN> address{};
  const asio::ip::address a = e.address();
  if (a.is_v4()) {
    const auto bytes = a.to_v4().to_bytes();
    ::inet_ntop(AF_INET, bytes.data(), address.data(), address.size());
  } else {
    const auto bytes = a.to_v6().to_bytes();
    ::inet_ntop(AF_INET6, bytes.data(), address.data(), address.size());
  }
  std::snprintf(text_.data(), text_.size(), a.is_v4() ? "%s:%u" : "[%s]:%u", address.data(),
                unsigned(e.port()));
}

} // namespace detail

void set_log(log_function f, const log_options& options) {
  if (detail::is_in_log)
    throw std::logic_error("set_log: called by the log function");
  auto& target = detail::target();
  log_function former; // destroyed after the mutex is unlocked
  const std::unique_lock lock(target.mutex);
  const bool on = static_cast<bool>(f);
  former = std::exchange(target.function, std::move(f));
  target.long_wait = options.long_wait;
  detail::least_logged = on ? static_cast<std::uint8_t>(options.least) : std::uint8_t(0xff);
}

const char* to_string(log_severity s) noexcept {
  switch (s) {
  case log_severity::debug:
    return "debug";
  case log_severity::info:
    return "info";
  case log_severity::warning:
    return "warning";
  default:
    return "error";
  }
}

const char* to_string(log_event e) noexcept {
  switch (e) {
  case log_event::open:
    return "open";
  case log_event::connect:
    return "connect";
  case log_event::accept:
    return "accept";
  case log_event::refuse:
    return "refuse";
  case log_event::end:
    return "end";
  case log_event::failure:
    return "failure";
  case log_event::device:
    return "device";
  case log_event::memory:
    return "memory";
  default:
    return "wait";
  }
}

} // namespace asio_rdma
