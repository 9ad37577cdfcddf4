// SPDX-License-Identifier: BSL-1.0
#include "results.hpp"

#include "../sizes.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <locale>
#include <set>
#include <sstream>

namespace perf {

namespace {

constexpr double bar = 9, between_groups = 14, height = 150, left = 62, above = 88, below = 52;

std::string_view color(kind k) {
  constexpr std::string_view colors[] = {"#3465a4", "#f57900", "#73d216",
                                         "#75507b", "#cc0000", "#888a85"};
  return colors[std::size_t(k)];
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&' || c == '<' || c == '>')
      result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : "&gt;";
    else // XML knows no control characters
      result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result;
}

/// The number, as 1, 10 or 100 of the unit: "10 µs", "1 MB/s".
std::string tick(metric m, int power) {
  static constexpr const char* times[] = {"ns", "µs", "ms", "s", "ks"};
  static constexpr const char* rates[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  power = std::clamp(power + (m == metric::latency ? 3 : 0), 0, 14); // in ns, in bytes a second
  const std::string number = power % 3 == 0 ? "1 " : power % 3 == 1 ? "10 " : "100 ";
  return number + (m == metric::latency ? times : rates)[power / 3];
}

/// µs, or bytes a second; 0 if the row has no such figure.
double value_of(const row& r, metric m) {
  if (m == metric::latency)
    return r.latency ? r.latency->p50 : 0;
  return r.bandwidth ? r.bandwidth->bytes_per_second() : 0;
}

/// A logarithmic axis, common to the pictures of a metric.
struct axis {
  int least = 0, most = 1; // powers of ten

  axis(const results& r, metric m) {
    bool first = true;
    for (const row& each : r.rows) {
      const double low = value_of(each, m);
      if (!(low > 0))
        continue;
      const double high = m == metric::latency ? std::max(low, each.latency->p99) : low;
      const int from = int(std::floor(std::log10(low) - 0.05)),
                to = int(std::ceil(std::log10(high)));
      least = first ? from : std::min(least, from);
      most = first ? to : std::max(most, to);
      first = false;
    }
    most = std::max(most, least + 1);
  }
  double up(double value) const {
    return std::clamp((std::log10(value) - least) / (most - least), 0.0, 1.0) * height;
  }
};

class picture {
public:
  explicit picture(const results& r) : r_(r) {
    out_.imbue(std::locale::classic());
    out_.setf(std::ios::fixed);
    out_.precision(1);
    std::set<std::uint64_t> sizes;
    std::set<kind> kinds;
    std::set<mode> modes;
    for (const row& each : r.rows) {
      sizes.insert(each.size);
      kinds.insert(each.what);
      if (each.what != kind::tcp)
        modes.insert(each.how);
    }
    sizes_.assign(sizes.begin(), sizes.end());
    kinds_.assign(kinds.begin(), kinds.end());
    modes_.assign(modes.begin(), modes.end());
    if (modes_.empty()) // TCP alone
      modes_.push_back(mode::event);
    for (const metric m : all_metrics)
      if (std::any_of(r.rows.begin(), r.rows.end(),
                      [&](const row& x) { return value_of(x, m) > 0; }))
        metrics_.push_back(m);
  }

  std::string draw() {
    const double group = double(kinds_.size()) * bar + between_groups;
    const double width = std::max(330.0, double(sizes_.size()) * group);
    const double column = left + width + 24, line = height + below + 24;
    const double columns = double(std::max<std::size_t>(1, metrics_.size()));
    const double whole = std::max(620.0, column * columns + 10);
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << whole << "\" height=\""
         << above + line * double(modes_.size())
         << "\" font-family=\"sans-serif\" font-size=\"11\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    legend();
    for (std::size_t y = 0; y < modes_.size(); ++y)
      for (std::size_t x = 0; x < metrics_.size(); ++x)
        panel(modes_[y], metrics_[x], double(x) * column + left, above + line * double(y), width);
    out_ << "</svg>\n";
    return out_.str();
  }

private:
  void text(double x, double y, std::string_view anchor, std::string_view words,
            bool bold = false) {
    out_ << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << '"'
         << (bold ? " font-weight=\"bold\"" : "") << '>' << escaped(words) << "</text>\n";
  }

  void legend() {
    std::string title = "asio_rdma-perf " + r_.version;
    for (const auto& [name, value] : r_.here)
      if (name == "device" || name == "transport" || name == "MTU")
        title += ", " + name + ' ' + value;
    text(8, 18, "start", title + (r_.machines == 1 ? ", one machine" : ", two machines"), true);
    double x = 8;
    for (const kind k : kinds_) {
      out_ << "<rect class=\"key\" x=\"" << x << "\" y=\"28\" width=\"9\" height=\"9\" fill=\""
           << color(k) << "\"/>\n";
      text(x + 13, 37, "start", name(k));
      x += 30 + 7 * double(name(k).size());
    }
    text(8, 53, "start",
         "Latency: the median, with a line to p99; half of a round trip, of write and read the "
         "whole "
         "operation.");
  }

  void panel(mode how, metric m, double x, double y, double width) {
    const axis a(r_, m);
    text(x, y - 8, "start", std::string(name(how)) + ": " + std::string(name(m)), true);
    for (int power = a.least; power <= a.most; ++power) {
      const double at = y + height - a.up(std::pow(10.0, power));
      out_ << "<path d=\"M" << x << ' ' << at << 'H' << x + width << "\" stroke=\"#d3d7cf\"/>\n";
      text(x - 6, at + 4, "end", tick(m, power));
    }
    const double group = width / double(sizes_.size());
    const double inside = double(kinds_.size()) * bar;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const double begin = x + double(i) * group + (group - inside) / 2;
      text(begin + inside / 2, y + height + 15, "middle", size_text(sizes_[i]));
      for (std::size_t k = 0; k < kinds_.size(); ++k)
        draw_bar(a, m, how, kinds_[k], sizes_[i], begin + double(k) * bar, y + height);
    }
    text(x + width / 2, y + height + 30, "middle", "bytes");
  }

  void draw_bar(const axis& a, metric m, mode how, kind k, std::uint64_t size, double x,
                double bottom) {
    const auto found = std::find_if(r_.rows.begin(), r_.rows.end(), [&](const row& r) {
      return r.what == k && (r.how == how || k == kind::tcp) && r.size == size;
    });
    if (found == r_.rows.end() || !(value_of(*found, m) > 0))
      return;
    const double up = a.up(value_of(*found, m));
    const std::string number =
        m == metric::latency
            ? rounded(found->latency->p50) + " µs, p99 " + rounded(found->latency->p99) + " µs"
            : rounded(found->bandwidth->bytes_per_second() / 1e9) + " GB/s";
    out_ << "<rect class=\"bar\" x=\"" << x << "\" y=\"" << bottom - up << "\" width=\"" << bar - 1
         << "\" height=\"" << up << "\" fill=\"" << color(k) << "\"><title>" << name(k) << ", "
         << size_text(size) << ": " << number << "</title></rect>\n";
    if (m == metric::latency && found->latency->p99 > found->latency->p50)
      out_ << "<path d=\"M" << x + (bar - 1) / 2 << ' ' << bottom - up << 'V'
           << bottom - a.up(found->latency->p99) << "\" stroke=\"#2e3436\"/>\n";
  }

  const results& r_;
  std::ostringstream out_;
  std::vector<std::uint64_t> sizes_;
  std::vector<kind> kinds_;
  std::vector<mode> modes_;
  std::vector<metric> metrics_;
};

} // namespace

std::string to_svg(const results& r) { return picture(r).draw(); }

} // namespace perf
