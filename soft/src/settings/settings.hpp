// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_SETTINGS_SETTINGS_HPP
#define SOFT_SETTINGS_SETTINGS_HPP

#include "settings/personality.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace soft {

/// Where a fault may happen. A set of places is a mask of `bit_of`.
enum class place : unsigned {
  now, ///< at once, when the settings come into force
  // ---- a request of a queue pair, before it is carried out
  send,
  write,
  read,
  atomic,
  bind,
  // ---- the completion of a receive
  receive,
  // ---- calls
  alloc_pd,
  reg_mr,
  alloc_mw,
  create_cq,
  create_srq,
  create_qp,
  modify_qp,
  post_send,
  post_recv,
  connect, ///< rdma_connect
  count_
};
constexpr std::uint32_t bit_of(place p) noexcept { return 1u << static_cast<unsigned>(p); }
inline constexpr std::uint32_t request_places = bit_of(place::send) | bit_of(place::write) |
                                                bit_of(place::read) | bit_of(place::atomic) |
                                                bit_of(place::bind);

enum class action {
  fail,  ///< with an `ibv_wc_status`, an error number, or a reason of rejection
  delay, ///< by `fault::time`
  drop,  ///< the queue pair gets nothing from its peer any more
  flap,  ///< the same for `fault::time`
  kill,  ///< the connection to another process is reset
  event  ///< an `ibv_event_type`
};

/// One line of the table of faults: where, when, what.
struct fault {
  std::uint32_t places = 0;
  std::uint64_t first = 1, last = 1; ///< occasions, counted from 1
  double probability = 1;            ///< of each occasion from `first` to `last`
  action what = action::fail;
  int value = 0;
  std::chrono::nanoseconds time{0};
};

/// The settings of a user, by ASIO_RDMA_SOFT or `soft_set`.
struct settings {
  std::chrono::nanoseconds latency{0}; ///< from a post to its effect, within a process
  std::chrono::nanoseconds jitter{0};  ///< a random part of it comes in addition
  bool at_post = false; ///< the posting thread carries out requests within the process
  std::chrono::nanoseconds answer{std::chrono::seconds(65)}; ///< see soft/README.md
  double rate = 0;          ///< bits per second of a queue pair's wire within a process; 0: any
  std::uint8_t tos = 0;     ///< rdma_cm's type of service, for ids that set none
  std::optional<bool> crc;  ///< connections to other processes ask for CRCs; else it depends
  personality kind = plain; ///< with the values that were set in place of its own
  std::uint64_t seed = 1;
  std::vector<fault> faults;
};

/// The first error in a text of settings.
struct settings_error {
  std::size_t position = 0, length = 0; ///< of the part that is wrong
  const char* what = "";
};

/// Reads a comma separated list of settings: soft/README.md.
std::optional<settings_error> parse(std::string_view text, settings& to);

} // namespace soft

#endif
