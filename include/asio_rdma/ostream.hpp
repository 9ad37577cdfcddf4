// SPDX-License-Identifier: BSL-1.0
// Output of enumerations and options, for logs and tests. `std::cout << stream.options()` prints
// `{receives=16, receive_size=4096, …}`. The form is for people, and may change.
#pragma once

#include <asio_rdma/alock.hpp>
#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/connect_options.hpp>
#include <asio_rdma/connection_options.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/error.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/log.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/queue_pair_options.hpp>
#include <asio_rdma/shared_receive_queue.hpp>
#include <asio_rdma/shared_receives.hpp>
#include <asio_rdma/stream_options.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <string_view>
#include <type_traits>
#include <utility>

namespace asio_rdma {

namespace detail {

/// Prints the name of an enumerator, or the number of a value without a name.
template <class Enum>
std::ostream& print_name(std::ostream& os, Enum value,
                         std::initializer_list<std::pair<Enum, std::string_view>> names) {
  for (const auto& [one, name] : names)
    if (one == value)
      return os << name;
  return os << +static_cast<std::underlying_type_t<Enum>>(value);
}

/// Prints the names of the bits that are set, with `|` between them, or `none`.
template <class Enum>
std::ostream& print_set(std::ostream& os, Enum value, std::string_view none,
                        std::initializer_list<std::pair<Enum, std::string_view>> names) {
  auto left = static_cast<unsigned>(value);
  bool first = true;
  for (const auto& [one, name] : names) {
    const auto bits = static_cast<unsigned>(one);
    if ((left & bits) != bits)
      continue;
    left &= ~bits;
    os << (std::exchange(first, false) ? "" : "|") << name;
  }
  if (left != 0) // bits without a name
    os << (std::exchange(first, false) ? "" : "|") << left;
  return first ? os << none : os;
}

} // namespace detail

inline std::ostream& operator<<(std::ostream& os, error e) {
  return os << make_error_code(e).message();
}

inline std::ostream& operator<<(std::ostream& os, queue_pair_state state) {
  return detail::print_name(os, state,
                            {{queue_pair_state::closed, "closed"},
                             {queue_pair_state::open, "open"},
                             {queue_pair_state::connected, "connected"},
                             {queue_pair_state::failed, "failed"}});
}

inline std::ostream& operator<<(std::ostream& os, completion_mode mode) {
  return detail::print_name(os, mode,
                            {{completion_mode::event, "event"},
                             {completion_mode::adaptive, "adaptive"},
                             {completion_mode::busy, "busy"},
                             {completion_mode::manual, "manual"}});
}

inline std::ostream& operator<<(std::ostream& os, visibility v) {
  return detail::print_name(
      os, v, {{visibility::completed, "completed"}, {visibility::flushed, "flushed"}});
}

inline std::ostream& operator<<(std::ostream& os, ownership o) {
  return detail::print_name(os, o, {{ownership::take, "take"}, {ownership::borrow, "borrow"}});
}

inline std::ostream& operator<<(std::ostream& os, transport t) {
  return detail::print_name(os, t,
                            {{transport::infiniband, "infiniband"},
                             {transport::iwarp, "iwarp"},
                             {transport::other, "other"}});
}

inline std::ostream& operator<<(std::ostream& os, log_severity s) { return os << to_string(s); }

inline std::ostream& operator<<(std::ostream& os, log_event e) { return os << to_string(e); }

inline std::ostream& operator<<(std::ostream& os, gid_entry::kind k) {
  return detail::print_name(os, k,
                            {{gid_entry::kind::infiniband, "infiniband"},
                             {gid_entry::kind::roce_v1, "roce_v1"},
                             {gid_entry::kind::roce_v2, "roce_v2"}});
}

inline std::ostream& operator<<(std::ostream& os, placement what) {
  return detail::print_set(
      os, what, "none", {{placement::visible, "visible"}, {placement::persistent, "persistent"}});
}

inline std::ostream& operator<<(std::ostream& os, access rights) {
  return detail::print_set(os, rights, "local_read",
                           {{access::local_write, "local_write"},
                            {access::remote_write, "remote_write"},
                            {access::remote_read, "remote_read"},
                            {access::remote_atomic, "remote_atomic"},
                            {access::window_bind, "window_bind"},
                            {access::relaxed_ordering, "relaxed_ordering"},
                            {access::on_demand, "on_demand"},
                            {access::flush_visible, "flush_visible"},
                            {access::flush_persistent, "flush_persistent"}});
}

// Argument-dependent lookup finds it: the enumeration is a member of a class of this namespace.
inline std::ostream& operator<<(std::ostream& os, queue_pair_base::flags how) {
  using flags = queue_pair_base::flags;
  return detail::print_set(os, how, "none",
                           {{flags::solicited, "solicited"},
                            {flags::fenced, "fenced"},
                            {flags::unsignaled, "unsignaled"}});
}

namespace detail {

/// Prints the members of options.
class member_printer {
public:
  explicit member_printer(std::ostream& os) : os_(os) {}

  template <class T, class... More>
  void members(std::string_view name, const T& value, const More&... more) {
    os_ << name << '=';
    print(value);
    if constexpr (sizeof...(more) != 0) {
      os_ << ", ";
      members(more...);
    }
  }

private:
  void print(bool value) { os_ << (value ? "true" : "false"); }
  template <class T>
  void print(const T& value) {
    if constexpr (std::integral<T>)
      os_ << +value; // a number, also if the type is a character's
    else
      os_ << value;
  }
  template <class T>
  void print(const std::optional<T>& value) {
    if (value)
      print(*value);
    else
      os_ << "none";
  }
  template <class Rep, class Period>
  void print(const std::chrono::duration<Rep, Period>& value) {
    os_ << std::chrono::duration_cast<std::chrono::microseconds>(value).count() << "us";
  }
  template <class Signature>
  void print(const std::function<Signature>& value) {
    os_ << (value ? "set" : "none");
  }
  void print(const private_data& value) { os_ << value.size() << " bytes"; }
  void print(ibv_qp_type value) {
    print_name(os_, value, {{IBV_QPT_RC, "RC"}, {IBV_QPT_UC, "UC"}, {IBV_QPT_UD, "UD"}});
  }
  void print(ibv_mtu value) { // bytes
    os_ << (value == 0 ? 0 : 128 << static_cast<unsigned>(value));
  }

  std::ostream& os_;
};

/// Prints members, of which each is given by its name and its value.
template <class... Members>
std::ostream& print_members(std::ostream& os, const Members&... members) {
  os << '{';
  member_printer(os).members(members...);
  return os << '}';
}

} // namespace detail

inline std::ostream& operator<<(std::ostream& os, const queue_pair_options& o) {
  return detail::print_members(
      os, "type", o.type, "send_depth", o.send_depth, "receive_depth", o.receive_depth,
      "max_send_sge", o.max_send_sge, "max_receive_sge", o.max_receive_sge, "max_inline",
      o.max_inline, "port", o.port, "pkey_index", o.pkey_index, "local", o.local, "path_mtu",
      o.path_mtu, "max_reads", o.max_reads, "timeout", o.timeout, "retry_count", o.retry_count,
      "rnr_retry", o.rnr_retry, "min_rnr_timer", o.min_rnr_timer, "hop_limit", o.hop_limit,
      "traffic_class", o.traffic_class, "service_level", o.service_level);
}

inline std::ostream& operator<<(std::ostream& os, const remote_memory_options& o) {
  return detail::print_members(os, "rights", o.rights, "bytes", o.bytes, "grants", o.grants,
                               "default_lease", o.default_lease, "longest_lease", o.longest_lease,
                               "grace", o.grace);
}

inline std::ostream& operator<<(std::ostream& os, const connection_options& o) {
  return detail::print_members(os, "receives", o.receives, "receive_size", o.receive_size,
                               "max_receive_size", o.max_receive_size, "sends", o.sends, "gather",
                               o.gather, "max_message", o.max_message, "offers", o.offers, "pulls",
                               o.pulls, "pull_bytes", o.pull_bytes, "keep_alive", o.keep_alive,
                               "read_timeout", o.read_timeout, "remote_memory", o.remote_memory,
                               "own_domain", o.own_domain, "queue_pair", o.queue_pair);
}

inline std::ostream& operator<<(std::ostream& os, const stream_options& o) {
  return detail::print_members(os, "receives", o.receives, "receive_size", o.receive_size,
                               "max_receive_size", o.max_receive_size, "sends", o.sends, "linger",
                               o.linger, "keep_alive", o.keep_alive, "read_timeout", o.read_timeout,
                               "own_domain", o.own_domain, "queue_pair", o.queue_pair);
}

inline std::ostream& operator<<(std::ostream& os, const acceptor_options& o) {
  return detail::print_members(os, "backlog", o.backlog, "handshakes", o.handshakes, "patience",
                               o.patience);
}

inline std::ostream& operator<<(std::ostream& os, const connect_options& o) {
  return detail::print_members(os, "data", o.data, "timeout", o.timeout, "local", o.local,
                               "type_of_service", o.type_of_service);
}

inline std::ostream& operator<<(std::ostream& os, const accept_options& o) {
  return detail::print_members(os, "data", o.data, "timeout", o.timeout, "admit", o.admit);
}

inline std::ostream& operator<<(std::ostream& os, const completion_queue_options& o) {
  return detail::print_members(os, "mode", o.mode, "entries", o.entries, "spin", o.spin,
                               "completion_vector", o.completion_vector);
}

inline std::ostream& operator<<(std::ostream& os, const memory_pool_options& o) {
  return detail::print_members(os, "rights", o.rights, "first_arena", o.first_arena, "limit",
                               o.limit, "huge_pages", o.huge_pages, "zeroed", o.zeroed, "log",
                               o.log);
}

inline std::ostream& operator<<(std::ostream& os, const log_options& o) {
  return detail::print_members(os, "least", o.least, "long_wait", o.long_wait);
}

inline std::ostream& operator<<(std::ostream& os, const shared_receive_queue_options& o) {
  return detail::print_members(os, "depth", o.depth, "max_sge", o.max_sge);
}

inline std::ostream& operator<<(std::ostream& os, const shared_receives_options& o) {
  return detail::print_members(os, "receives", o.receives, "receive_size", o.receive_size,
                               "per_link", o.per_link);
}

inline std::ostream& operator<<(std::ostream& os, const global_memory_options& o) {
  return detail::print_members(os, "in_flight", o.in_flight, "lanes", o.lanes, "shared_lanes",
                               o.shared_lanes);
}

inline std::ostream& operator<<(std::ostream& os, const alock_options& o) {
  return detail::print_members(os, "local_budget", o.local_budget, "remote_budget",
                               o.remote_budget);
}

} // namespace asio_rdma
