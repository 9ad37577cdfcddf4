// SPDX-License-Identifier: BSL-1.0
#include "results.hpp"

#include "../sizes.hpp"

#include <algorithm>
#include <cstddef>
#include <sstream>

namespace perf {

namespace {

using cells = std::vector<std::string>;

/// Names of the columns. The first two are words, the others numbers.
const cells titles{"what",   "mode", "size", "p50 us", "p99 us", "p99.9 us",
                   "max us", "n",    "GB/s", "op/s",   "window"};
constexpr std::size_t words = 2;

cells cells_of(const row& r) {
  // The mode of a completion queue does not concern TCP.
  cells c{std::string(name(r.what)), r.what == kind::tcp ? "-" : std::string(name(r.how)),
          size_text(r.size)};
  if (const auto& l = r.latency)
    c.insert(c.end(), {rounded(l->p50), rounded(l->p99), rounded(l->p999), rounded(l->most),
                       std::to_string(l->count)});
  else
    c.insert(c.end(), 5, "-");
  if (const auto& b = r.bandwidth)
    c.insert(c.end(), {rounded(b->bytes_per_second() / 1e9), rounded(b->operations_per_second()),
                       std::to_string(b->window)});
  else
    c.insert(c.end(), 3, "-");
  return c;
}

void write_line(std::ostream& out, const cells& c, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const std::string space(widths[i] - c[i].size(), ' ');
    line += (i == 0 ? "" : "  ") + (i < words ? c[i] + space : space + c[i]);
  }
  out << line << '\n';
}

void write_facts(std::ostream& out, const char* title, const facts& all) {
  out << title;
  const char* between = " ";
  for (const auto& [name, value] : all) {
    out << between << name << ' ' << value;
    between = ", ";
  }
  out << '\n';
}

std::string fact(const facts& all, std::string_view name) {
  for (const auto& [n, value] : all)
    if (n == name)
      return value;
  return {};
}

void write_notes(std::ostream& out, const results& r) {
  const auto any = [&](auto is) {
    return std::any_of(r.rows.begin(), r.rows.end(), is);
  };
  const bool latency = any([](const row& x) { return x.latency.has_value(); });
  if (latency && any([](const row& x) { return is_half_round_trip(x.what); }))
    out << "us: half of a round trip of " << (r.machines == 1 ? "two processes" : "two machines")
        << " (send, messages, stream, tcp)\n";
  if (latency && any([](const row& x) { return is_one_sided(x.what); }))
    out << "us: a whole operation, from its start to its completion (write, read)\n";
  if (any([](const row& x) { return x.bandwidth.has_value(); }))
    out << "GB/s: 10^9 bytes a second, with as many operations outstanding as the window says\n";
  if (fact(r.here, "transport") == "iWARP" &&
      any([](const row& x) { return x.what == kind::write; }))
    out << "iWARP: a write completes when its bytes were sent, not when they have arrived\n";
  if (r.machines == 1 && fact(r.here, "CPUs") == "1" &&
      any([](const row& x) { return x.how != mode::event; }))
    out << "One CPU: both processes poll on it by turns, so adaptive and busy say little\n";
}

} // namespace

std::string to_table(const results& r) {
  std::ostringstream out;
  out << "asio_rdma-perf " << r.version << ", "
      << (r.machines == 1 ? "two processes of this machine" : "two machines") << ", "
      << rounded(r.seconds) << " s a measurement\n";
  write_facts(out, "here: ", r.here);
  write_facts(out, "there:", r.there);
  std::vector<cells> lines{titles};
  for (const row& each : r.rows)
    lines.push_back(cells_of(each));
  std::vector<std::size_t> widths(titles.size());
  for (const cells& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  out << '\n';
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 1 && r.rows[i - 1].what != r.rows[i - 2].what)
      out << '\n';
    write_line(out, lines[i], widths);
  }
  out << '\n';
  for (const row& each : r.rows)
    if (!each.problem.empty())
      out << name(each.what) << ' ' << name(each.how) << ' ' << size_text(each.size) << ": "
          << each.problem << '\n';
  write_notes(out, r);
  return out.str();
}

} // namespace perf
