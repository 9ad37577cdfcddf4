// SPDX-License-Identifier: BSL-1.0
#include "sizes.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>

namespace perf {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw std::invalid_argument("'" + std::string(text) + "' " + why);
}

void add_range(std::vector<std::uint64_t>& to, std::string_view text,
               const std::vector<std::string>& parts) {
  std::uint64_t factor = 4;
  if (parts.size() > 3)
    refuse(text, "is no range of sizes (FIRST:LAST or FIRST:LAST:FACTOR)");
  if (parts.size() == 3)
    factor = parse_bytes(parts[2]);
  const std::uint64_t first = parse_bytes(parts[0]), last = parse_bytes(parts[1]);
  if (first > last)
    refuse(text, "is a range that ends below its first size");
  if (factor < 2)
    refuse(text, "is a range whose factor is below 2");
  for (std::uint64_t size = first; size < last; size *= factor)
    to.push_back(size);
  to.push_back(last);
}

} // namespace

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> result;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(by, at);
    result.emplace_back(text.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos)
      return result;
    at = end + 1;
  }
}

std::uint64_t parse_bytes(std::string_view text, std::uint64_t most) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [behind, ec] = std::from_chars(text.data(), end, number);
  unsigned shift = 0;
  if (ec == std::errc() && end - behind == 1)
    shift = *behind == 'K' ? 10 : *behind == 'M' ? 20 : *behind == 'G' ? 30 : 0;
  if (ec != std::errc() || end - behind > 1 || (end - behind == 1 && shift == 0) || number == 0)
    refuse(text, "is no number of bytes (such as 64, 4K, 1M or 1G)");
  if (number > most >> shift)
    refuse(text, "is more than " + size_text(most));
  return number << shift;
}

std::vector<std::uint64_t> parse_sizes(std::string_view text) {
  std::vector<std::uint64_t> result;
  for (const std::string& item : split(text, ',')) {
    const std::vector<std::string> parts = split(item, ':');
    if (parts.size() == 1)
      result.push_back(parse_bytes(item));
    else
      add_range(result, item, parts);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::string size_text(std::uint64_t bytes) {
  constexpr const char* units[] = {"", "K", "M", "G"};
  std::size_t unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + units[unit];
}

} // namespace perf
