// SPDX-License-Identifier: BSL-1.0
#include "request.hpp"

#include "sizes.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <vector>

namespace perf {

namespace {

constexpr std::array<std::string_view, 6> kind_names{"send",     "write",  "read",
                                                     "messages", "stream", "tcp"};
constexpr std::array<std::string_view, 3> mode_names{"event", "adaptive", "busy"};
constexpr std::array<std::string_view, 2> metric_names{"latency", "bandwidth"};

template <class Names>
std::size_t find(std::string_view text, const Names& names) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end())
    return std::size_t(found - names.begin());
  std::string message = "'" + std::string(text) + "' is none of";
  for (const std::string_view each : names)
    message += ' ' + std::string(each);
  throw std::invalid_argument(message);
}

template <class Number>
Number number(const std::string& text, Number least, Number most) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [behind, ec] = std::from_chars(text.data(), end, value);
  if (ec != std::errc() || behind != end || !(value >= least) || !(value <= most))
    throw std::invalid_argument("a number of the request is not within its limits");
  return value;
}

} // namespace

std::string_view name(kind k) { return kind_names.at(std::size_t(k)); }
std::string_view name(mode m) { return mode_names.at(std::size_t(m)); }
std::string_view name(metric m) { return metric_names.at(std::size_t(m)); }

kind kind_of(std::string_view text) { return all_kinds[find(text, kind_names)]; }
mode mode_of(std::string_view text) { return all_modes[find(text, mode_names)]; }
metric metric_of(std::string_view text) { return all_metrics[find(text, metric_names)]; }

std::uint32_t slots(const request& r, const memory_limits& limits) {
  return std::uint32_t(std::clamp<std::uint64_t>(limits.window / r.size, 1, r.window));
}

std::uint32_t window_in_force(const request& r, const memory_limits& limits) {
  if (r.of == metric::latency || r.what == kind::tcp)
    return 1;
  return std::min(r.window, std::max<std::uint32_t>(2, slots(r, limits)));
}

double longest_time(const request& r) {
  return 30 + 4 * r.seconds + 4 * (1 + double(r.window)) * double(r.size) / 50e6;
}

std::string to_line(const request& r) {
  std::ostringstream out;
  out << "run " << name(r.what) << ' ' << name(r.how) << ' ' << name(r.of) << ' ' << r.size << ' '
      << r.window << ' ' << r.seconds;
  return out.str();
}

request parse_request(std::string_view line, const memory_limits& limits) {
  const std::vector<std::string> words = split(line, ' ');
  if (words.size() != 7 || words[0] != "run")
    throw std::invalid_argument("the line is no request");
  request r;
  r.what = kind_of(words[1]);
  r.how = mode_of(words[2]);
  r.of = metric_of(words[3]);
  r.size = number<std::uint64_t>(words[4], 1, largest_size);
  r.window = number<std::uint32_t>(words[5], 1, largest_window);
  r.seconds = number<double>(words[6], 1e-6, longest_seconds);
  if (r.size > limits.size)
    throw std::out_of_range("operations of " + size_text(r.size) +
                            " are above the server's limit (--max-size), which is " +
                            size_text(limits.size));
  return r;
}

} // namespace perf
