// SPDX-License-Identifier: BSL-1.0
#include "report.hpp"

#include "observing/json_text.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <netinet/in.h>
#include <sstream>

namespace trial {

namespace {

using asio_rdma::detail::json_text;

std::string rounded(double value) {
  char text[40];
  const double size = value < 0 ? -value : value;
  std::snprintf(text, sizeof text, size >= 1000 ? "%.0f" : size >= 10 ? "%.1f" : "%.2f", value);
  return text;
}

/// The library's value by that of bare verbs: above 1 the library is faster.
double ratio(const figure& f) {
  return f.smaller_is_better ? f.bare / f.library : f.library / f.bare;
}

std::string to_json(const facts& all) {
  std::string result = "{";
  for (const auto& [name, value] : all)
    result += (result.size() > 1 ? "," : "") + json_text(name) + ':' + json_text(value);
  return result + '}';
}

std::string to_json(const report& r) {
  std::ostringstream out;
  out << "{\"trial\":1,\"date\":" << json_text(r.date) << ",\"machines\":" << r.sides
      << ",\"seconds\":" << rounded(r.seconds) << ",\"facts\":" << to_json(r.of_device);
  if (r.sides == 2)
    out << ",\"facts of the other machine\":" << to_json(r.of_far_device);
  out << ",\"checks\":[";
  const char* comma = "";
  for (const result& each : r.results) {
    out << comma << "{\"name\":" << json_text(each.of->name)
        << ",\"row\":" << json_text(each.of->row)
        << ",\"result\":" << json_text(word(each.end.what))
        << ",\"reason\":" << json_text(each.end.reason) << ",\"figures\":[";
    const char* between = "";
    for (const figure& f : each.figures) {
      out << between << "{\"name\":" << json_text(f.name) << ",\"unit\":" << json_text(f.unit)
          << ",\"library\":" << f.library;
      if (f.bare > 0)
        out << ",\"verbs\":" << f.bare << ",\"ratio\":" << rounded(ratio(f));
      out << '}';
      between = ",";
    }
    out << "]}";
    comma = ",";
  }
  out << "]}";
  return out.str();
}

bool is_hexadecimal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool is_address(std::string text) {
  while (!text.empty() && (text.back() == '.' || text.back() == ':'))
    text.pop_back();
  in6_addr place;
  return inet_pton(AF_INET, text.c_str(), &place) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &place) == 1 ||
         std::count(text.begin(), text.end(), ':') >= 3;
}

// Whether a name that begins or ends beside the character could be a part of a longer word.
bool continues_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Replaces the name where it is a word, in capital letters or not.
void replace_word(std::string& text, std::string_view name, std::string_view to) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  for (std::size_t from = 0;;) {
    const auto found = std::search(text.begin() + std::ptrdiff_t(from), text.end(), name.begin(),
                                   name.end(), same);
    if (found == text.end())
      return;
    const auto at = std::size_t(found - text.begin()), behind = at + name.size();
    const bool part = (at != 0 && continues_word(text[at - 1])) ||
                      (behind != text.size() && continues_word(text[behind]));
    if (!part)
      text.replace(at, name.size(), to);
    from = part ? at + 1 : at + to.size();
  }
}

} // namespace

std::size_t report::count(verdict::kind k) const {
  return std::size_t(std::count_if(results.begin(), results.end(),
                                   [k](const result& r) { return r.end.what == k; }));
}

std::string line_of(const result& r) {
  std::ostringstream out;
  out.width(18);
  out << std::left << r.of->name;
  out << word(r.end.what);
  if (!r.end.reason.empty())
    out << (r.end.what == verdict::kind::passed ? " (" + r.end.reason + ')' : ": " + r.end.reason);
  for (const figure& f : r.figures) {
    out << "\n    " << f.name << ": " << rounded(f.library) << ' ' << f.unit;
    if (f.bare > 0)
      out << ", bare verbs " << rounded(f.bare) << ", ratio " << rounded(ratio(f));
  }
  return out.str();
}

namespace {

void write(std::ostream& out, const char* title, const facts& all) {
  out << title << "\n\n";
  for (const auto& [name, value] : all) {
    out.width(24);
    out << std::left << name << value << '\n';
  }
  if (all.empty())
    out << "unknown: the check open has not described it\n";
  out << '\n';
}

} // namespace

std::string to_text(const report& r) {
  std::ostringstream out;
  out << "asio_rdma-trial, " << (r.sides == 1 ? "one machine" : "two machines") << ", " << r.date
      << ", " << rounded(r.seconds) << " s\n"
      << r.count(verdict::kind::passed) << " passed, " << r.count(verdict::kind::failed)
      << " failed, " << r.count(verdict::kind::not_here) << " not here\n\n";
  write(out, "Device", r.of_device);
  if (r.sides == 2)
    write(out, "Device of the other machine", r.of_far_device);
  out << "Checks (h1 to h20: the rows of docs/adapters.md)\n\n";
  for (const result& each : r.results)
    out << line_of(each) << '\n';
  out << "\nThe same as JSON\n\n" << to_json(r) << '\n';
  return out.str();
}

std::string without_names(std::string_view text, const std::vector<std::string>& names,
                          bool addresses) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && (is_hexadecimal(text[end]) || text[end] == ':' || text[end] == '.'))
      ++end;
    if (end == at) {
      result += text[at++];
      continue;
    }
    const std::string token(text.substr(at, end - at));
    result += addresses && is_address(token) ? "(address)" : token;
    at = end;
  }
  for (const std::string& name : names)
    if (name.size() > 2)
      replace_word(result, name, "(name)");
  return result;
}

} // namespace trial
