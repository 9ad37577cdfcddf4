// SPDX-License-Identifier: BSL-1.0
// A reader of settings: a state machine on text. It stops at the first part that it does not know.
//
//   list  := [ item { "," item } ]
//   item  := personality | name "=" value | action "=" fault
//   fault := place [ ":" when ] [ ":" what ]
//   when  := n | n "-" m | n "+" | "all" | p "%"
#include "settings/settings.hpp"
#include "settings/words.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace soft {
namespace {

using std::chrono::nanoseconds;

struct unit {
  std::string_view word;
  double factor;
};
constexpr unit time_units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr unit rate_units[] = {{"Kb", 1e3}, {"Mb", 1e6}, {"Gb", 1e9}};
// The room of a request on the software device, and a message with room for the headers of links.
constexpr unsigned most_elements = 32;
constexpr unsigned most_taken_receives = 64;
constexpr std::uint32_t most_inline = 65535, least_message = 65536;
constexpr std::uint32_t least_mtu = 256, most_mtu = 4096;
constexpr double longest_latency = 1e9, longest_time = 3600e9; // nanoseconds

constexpr const char* bad_time = "a time is a number and ns, us, ms or s";
constexpr const char* bad_rate = "a rate is a number above 0 and Kb, Mb or Gb, per second";
constexpr const char* bad_number = "a whole number is expected";
constexpr const char* bad_place = "there is no such place for this kind of fault";
constexpr const char* bad_when = "an occasion is n, n-m, n+, all, or a percentage";
constexpr const char* bad_status = "there is no completion status of this name";
constexpr const char* bad_error = "there is no error of this name";
constexpr const char* bad_event = "there is no event of this name, or none at this place";
constexpr const char* bad_reason = "there is no reason of a rejection of this name";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n'; }

class parser {
public:
  parser(std::string_view text, settings& to) : text_(text), to_(to) {}

  std::optional<settings_error> run() {
    skip_blanks();
    if (at_ == text_.size())
      return std::nullopt;
    do {
      skip_blanks();
      if (!item())
        return error_;
      skip_blanks();
    } while (take(','));
    if (at_ == text_.size())
      return std::nullopt;
    fail(at_, "a comma is expected");
    return error_;
  }

private:
  // ---- characters
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c)
      return false;
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (at_ != text_.size() && is_blank(text_[at_]))
      ++at_;
  }
  // Up to the end of the word: letters, digits and underscores.
  std::string_view word() {
    const std::size_t first = at_;
    const auto belongs = [](char c) {
      return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    while (at_ != text_.size() && belongs(text_[at_]))
      ++at_;
    return text_.substr(first, at_ - first);
  }
  // False: no digit, or more than 64 bits.
  bool whole(std::uint64_t& value) {
    const std::size_t first = at_;
    value = 0;
    for (; at_ != text_.size() && is_digit(text_[at_]); ++at_) {
      const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
      if (value > (std::numeric_limits<std::uint64_t>::max() - digit) / 10)
        return false;
      value = value * 10 + digit;
    }
    return at_ != first;
  }
  bool decimal(double& value) {
    std::uint64_t before = 0;
    if (!whole(before))
      return false;
    value = static_cast<double>(before);
    if (!take('.'))
      return true;
    const std::size_t first = at_;
    double part = 0.1;
    for (; at_ != text_.size() && is_digit(text_[at_]); ++at_, part /= 10)
      value += part * (text_[at_] - '0');
    return at_ != first;
  }
  // The error covers the text from `first` to the end of the item.
  bool fail(std::size_t first, const char* what) {
    const std::size_t end = std::min(text_.find(',', first), text_.size());
    error_ = {first, end - first, what};
    return false;
  }

  // ---- values
  template <std::size_t N>
  bool quantity(const unit (&units)[N], double& value) {
    if (!decimal(value))
      return false;
    const std::string_view name = word();
    for (const unit& u : units)
      if (u.word == name) {
        value *= u.factor;
        return true;
      }
    return name.empty() && value == 0; // 0 needs no unit
  }
  bool time(nanoseconds& to, double most) {
    const std::size_t first = at_;
    double ns = 0;
    if (!quantity(time_units, ns))
      return fail(first, bad_time);
    if (ns > most)
      return fail(first, "this time is too long");
    // Less than an error of the arithmetic is no fraction.
    to = nanoseconds(static_cast<std::int64_t>(std::ceil(ns - 1e-6)));
    return true;
  }
  template <class Integer>
  bool number(Integer& to) {
    const std::size_t first = at_;
    std::uint64_t value = 0;
    if (!whole(value) || value > std::numeric_limits<Integer>::max())
      return fail(first, bad_number);
    to = static_cast<Integer>(value);
    return true;
  }
  template <class Integer>
  bool number(Integer& to, Integer least, Integer most) {
    const std::size_t first = at_;
    Integer value{};
    if (!number(value))
      return false;
    to = value;
    return (value >= least && value <= most) || fail(first, "this number is out of range");
  }
  bool rate() {
    const std::size_t first = at_;
    return (quantity(rate_units, to_.rate) && to_.rate > 0) || fail(first, bad_rate);
  }
  template <class Bool>
  bool yes_or_no(Bool& to) {
    const std::size_t first = at_;
    const std::string_view w = word();
    to = w == "1";
    return w == "0" || w == "1" || fail(first, "0 or 1 is expected");
  }

  // ---- items
  bool item() {
    const std::size_t first = at_;
    const std::string_view name = word();
    if (!take('=')) {
      const personality* const p = find_personality(name);
      if (p == nullptr)
        return fail(first, "there is no such personality or setting");
      if (given_ || changed_)
        return fail(first, "one personality is expected, before the settings that change it");
      given_ = true;
      to_.kind = *p;
      to_.latency = p->latency;
      return true;
    }
    personality& k = to_.kind;
    if (name == "rate")
      return rate();
    if (name == "answer")
      return time(to_.answer, longest_time);
    if (name == "seed")
      return number(to_.seed);
    if (name == "tos")
      return number(to_.tos);
    if (name == "crc")
      return yes_or_no(to_.crc);
    if (name == "fail")
      return rule(action::fail);
    if (name == "delay")
      return rule(action::delay);
    if (name == "drop")
      return rule(action::drop);
    if (name == "flap")
      return rule(action::flap);
    if (name == "kill")
      return rule(action::kill);
    if (name == "event")
      return rule(action::event);
    changed_ = true;
    if (name == "latency")
      return time(to_.latency, longest_latency);
    if (name == "jitter")
      return time(to_.jitter, longest_latency);
    if (name == "at_post")
      return yes_or_no(to_.at_post);
    if (name == "create")
      return time(k.create, longest_time);
    if (name == "destroy")
      return time(k.destroy, longest_time);
    if (name == "removal")
      return time(k.removal, longest_time);
    if (name == "removal_notice")
      return time(k.removal_notice, longest_time);
    if (name == "ids_last")
      return yes_or_no(k.ids_last);
    if (name == "late_last_wqe")
      return time(k.late_last_wqe, longest_time);
    if (name == "no_last_wqe")
      return yes_or_no(k.no_last_wqe);
    if (name == "last_wqe_only_without_error")
      return yes_or_no(k.last_wqe_only_without_error);
    if (name == "late_failure")
      return time(k.late_failure, longest_time);
    if (name == "untold_route")
      return yes_or_no(k.untold_route);
    if (name == "taken_receives")
      return number(k.taken_receives, 0u, most_taken_receives);
    if (name == "late_placement")
      return time(k.late_placement, longest_time);
    if (name == "ece")
      return number(k.ece_options);
    if (name == "stale")
      return number(k.stale_rejects);
    if (name == "send_elements") {
      const bool good = number(k.send_elements, 1u, most_elements);
      k.read_elements = std::min(k.read_elements, k.send_elements);
      return good;
    }
    if (name == "receive_elements")
      return number(k.receive_elements, 1u, most_elements);
    if (name == "max_inline")
      return number(k.inline_bytes, std::uint32_t(0), most_inline);
    if (name == "max_message")
      return number(k.message_bytes, least_message, std::uint32_t(1) << 31);
    if (name == "max_datagram")
      return number(k.datagram_bytes, least_mtu, most_mtu);
    if (name == "vectors")
      return number(k.vectors, 1u, 1024u);
    if (name == "drops_completions")
      return yes_or_no(k.drops_completions);
    if (name == "eio_after_removal")
      return yes_or_no(k.eio_after_removal);
    if (name == "locks_memory")
      return yes_or_no(k.locks_memory);
    if (name == "header_in_sl")
      return yes_or_no(k.header_in_sl);
    if (name == "grh_required")
      return yes_or_no(k.grh_required);
    if (name == "infiniband")
      return yes_or_no(k.infiniband);
    return fail(first, "there is no such setting");
  }

  bool rule(action what) {
    fault f;
    f.what = what;
    const std::size_t first = at_;
    const auto places = words::places(word());
    if (!places || !may_happen(what, *places))
      return fail(first, bad_place);
    f.places = *places;
    if (f.places != bit_of(place::now)) {
      if (!take(':'))
        return fail(at_, bad_when);
      if (!when(f))
        return false;
    }
    if (what != action::drop && what != action::kill) {
      if (!take(':'))
        return fail(at_, "a colon is expected");
      if (!consequence(f))
        return false;
    }
    to_.faults.push_back(f);
    return true;
  }

  static bool may_happen(action what, std::uint32_t places) {
    constexpr std::uint32_t now = bit_of(place::now), receive = bit_of(place::receive);
    switch (what) {
    case action::fail:
      return (places & now) == 0;
    case action::delay:
      return (places & (now | receive)) == 0;
    default:
      return (places & ~(now | receive | request_places)) == 0;
    }
  }

  bool when(fault& f) {
    const std::size_t first = at_;
    constexpr std::uint64_t for_ever = std::numeric_limits<std::uint64_t>::max();
    if (at_ != text_.size() && !is_digit(text_[at_])) {
      f.last = for_ever;
      return word() == "all" || fail(first, bad_when);
    }
    double percentage = 0;
    if (decimal(percentage) && take('%')) {
      f.last = for_ever;
      f.probability = percentage / 100;
      return percentage <= 100 || fail(first, "a percentage is at most 100");
    }
    at_ = first;
    if (!whole(f.first))
      return fail(first, bad_when);
    f.last = f.first;
    if (take('+'))
      f.last = for_ever;
    else if (take('-') && !whole(f.last))
      return fail(first, bad_when);
    return (f.first != 0 && f.first <= f.last) || fail(first, "occasions are counted from 1");
  }

  bool consequence(fault& f) {
    const std::size_t first = at_;
    if (f.what == action::delay || f.what == action::flap)
      return time(f.time, longest_time);
    const std::string_view w = word();
    const char* wrong = bad_error;
    std::optional<int> value;
    if (f.what == action::event) {
      wrong = bad_event;
      value = words::event_type(w);
      if (value && f.places == bit_of(place::now) && !words::is_about_device(*value))
        value.reset();
    } else if ((f.places & (request_places | bit_of(place::receive))) != 0) {
      wrong = bad_status;
      value = words::completion_status(w);
    } else if (f.places == bit_of(place::connect)) {
      wrong = bad_reason;
      value = words::reject_reason(w);
    } else {
      value = words::error_number(w);
    }
    if (!value)
      return fail(first, wrong);
    f.value = *value;
    return true;
  }

  const std::string_view text_;
  settings& to_;
  std::size_t at_ = 0;
  bool given_ = false, changed_ = false; // the personality
  settings_error error_;
};

} // namespace

std::optional<settings_error> parse(std::string_view text, settings& to) {
  settings read;
  if (auto error = parser(text, read).run())
    return error;
  to = std::move(read);
  return std::nullopt;
}

} // namespace soft
