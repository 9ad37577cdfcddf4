// SPDX-License-Identifier: BSL-1.0
#include "results.hpp"

#include "observing/json_text.hpp"

#include <locale>
#include <sstream>

namespace perf {

namespace {

using asio_rdma::detail::json_text;

void write(std::ostream& out, const facts& all) {
  const char* between = "{";
  for (const auto& [name, value] : all) {
    out << between << json_text(name) << ": " << json_text(value);
    between = ", ";
  }
  out << (all.empty() ? "{}" : "}");
}

void write(std::ostream& out, const row& r) {
  out << "{\"what\": " << json_text(name(r.what)) << ", \"mode\": " << json_text(name(r.how))
      << ", \"size\": " << r.size;
  if (const auto& l = r.latency)
    out << ", \"latency\": {\"unit\": \"us\", \"of\": "
        << (is_half_round_trip(r.what) ? "\"half round trip\"" : "\"operation\"")
        << ", \"count\": " << l->count << ", \"min\": " << l->least << ", \"mean\": " << l->mean
        << ", \"p50\": " << l->p50 << ", \"p99\": " << l->p99 << ", \"p99.9\": " << l->p999
        << ", \"max\": " << l->most << '}';
  if (const auto& b = r.bandwidth)
    out << ", \"bandwidth\": {\"bytes_per_second\": " << b->bytes_per_second()
        << ", \"operations_per_second\": " << b->operations_per_second()
        << ", \"window\": " << b->window << ", \"operations\": " << b->operations
        << ", \"seconds\": " << b->seconds << '}';
  if (!r.problem.empty())
    out << ", \"problem\": " << json_text(r.problem);
  out << '}';
}

} // namespace

std::string to_json(const results& r) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(10);
  out << "{\"perf\": 1, \"version\": " << json_text(r.version) << ", \"machines\": " << r.machines
      << ", \"seconds\": " << r.seconds << ",\n \"here\": ";
  write(out, r.here);
  out << ",\n \"there\": ";
  write(out, r.there);
  out << ",\n \"results\": [";
  const char* between = "\n  ";
  for (const row& each : r.rows) {
    out << between;
    write(out, each);
    between = ",\n  ";
  }
  out << "]}\n";
  return out.str();
}

} // namespace perf
