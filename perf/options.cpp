// SPDX-License-Identifier: BSL-1.0
#include "options.hpp"

#include "sizes.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace perf {

namespace {

/// The number of an option.
template <class Number>
Number number(const std::string& option, const std::string& text, Number least, Number most) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [behind, ec] = std::from_chars(text.data(), end, value);
  if (ec != std::errc() || behind != end || !(value >= least) || !(value <= most))
    throw usage_error(option + ": '" + text + "' is no number from " +
                      std::to_string(std::uint64_t(least)) + " to " +
                      std::to_string(std::uint64_t(most)));
  return value;
}

double seconds(const std::string& option, const std::string& text, double most) {
  const double value = number(option, text, 0.0, most);
  if (value < 1e-6)
    throw usage_error(option + ": '" + text + "' is too short a time");
  return value;
}

/// The parts of a list, in their order, each once.
template <class Item>
std::vector<Item> list(const std::string& text, Item (*parse)(std::string_view)) {
  std::vector<Item> result;
  for (const std::string& part : split(text, ','))
    if (const Item item = parse(part);
        std::find(result.begin(), result.end(), item) == result.end())
      result.push_back(item);
  return result;
}

std::string port_of(const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 5 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(text) > 65535)
    throw usage_error("'" + text + "' is no port");
  return text;
}

/// Reads the words one after the other.
class reader {
public:
  explicit reader(const std::vector<std::string>& words) : words_(words) {}

  options read() {
    while (at_ < words_.size())
      read_word(words_[at_++]);
    if (o_.listen && !only_of_client_.empty())
      throw usage_error(only_of_client_ +
                        " is an option of the other side: the server does what it asks for");
    if (!o_.listen && !only_of_server_.empty())
      throw usage_error(only_of_server_ + " is an option of the server (--listen)");
    return std::move(o_);
  }

private:
  const std::string& value(const std::string& option) {
    if (at_ == words_.size())
      throw usage_error(option + " needs a value");
    return words_[at_++];
  }

  void read_word(const std::string& word) {
    if (word == "--help" || word == "-h")
      o_.help = true;
    else if (word == "--device")
      o_.device = value(word);
    else if (word == "--progress" || word == "--quiet")
      o_.progress = word == "--progress";
    else if (word == "--memory")
      o_.memory.window = parse_bytes(value(word), std::uint64_t(1) << 40);
    else if (!word.starts_with("--"))
      read_host(word);
    else if (!read_of_server(word) && !read_of_client(word))
      throw usage_error("there is no option '" + word + "'");
  }

  void read_host(const std::string& word) {
    if (!o_.where.host.empty() || o_.listen)
      throw usage_error("'" + word + "' is one argument too many");
    o_.where = parse_place(word);
    if (o_.where.host.empty())
      throw usage_error("'" + word + "' has no host");
    only_of_client_ = word;
  }

  bool read_of_server(const std::string& word) {
    if (word == "--listen") {
      o_.listen = true;
      if (at_ < words_.size() && !words_[at_].starts_with("--"))
        o_.where = parse_place(value(word));
      return true;
    }
    if (word == "--max-size")
      o_.memory.size = parse_bytes(value(word));
    else if (word == "--session")
      o_.session = seconds(word, value(word), 86400);
    else if (word == "--clients")
      o_.clients = number<std::uint64_t>(word, value(word), 1, 1'000'000'000);
    else
      return false;
    only_of_server_ = word;
    return true;
  }

  bool read_of_client(const std::string& word) {
    if (word == "--what")
      o_.kinds = list(value(word), kind_of);
    else if (word == "--mode")
      o_.modes = list(value(word), mode_of);
    else if (word == "--measure")
      o_.metrics = list(value(word), metric_of);
    else if (word == "--sizes")
      o_.sizes = parse_sizes(value(word));
    else if (word == "--seconds")
      o_.seconds = seconds(word, value(word), longest_seconds);
    else if (word == "--window")
      o_.window = number<std::uint32_t>(word, value(word), 1, largest_window);
    else if (word == "--json")
      o_.json = value(word);
    else if (word == "--svg")
      o_.svg = value(word);
    else
      return false;
    only_of_client_ = word;
    return true;
  }

  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
  options o_;
  std::string only_of_client_, only_of_server_;
};

} // namespace

place parse_place(std::string text) {
  place result;
  const std::size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos &&
                        (text.find(':') == colon || (colon != 0 && text[colon - 1] == ']'));
  if (has_port) {
    result.port = port_of(text.substr(colon + 1));
    text.resize(colon);
  }
  if (text.size() > 2 && text.front() == '[' && text.back() == ']')
    text = text.substr(1, text.size() - 2);
  result.host = text;
  return result;
}

options parse_options(const std::vector<std::string>& words) try {
  options o = reader(words).read();
  if (const char* const device = std::getenv("ASIO_RDMA_DEVICE");
      device != nullptr && o.device.empty())
    o.device = device;
  return o;
} catch (const std::invalid_argument& e) {
  throw usage_error(e.what());
}

std::string help_text() {
  return R"(usage: asio_rdma-perf [HOST[:PORT]] [options]
       asio_rdma-perf --listen [ADDRESS][:PORT] [options]

Measures the latency and the bandwidth of asio_rdma between two machines: this
one, and HOST, on which asio_rdma-perf listens. Without HOST it measures between
two processes of this machine.

  --what LIST           send, write, read: a queue_pair's operations; messages: a
                        connection; stream: a stream; tcp: a TCP socket (all)
  --mode LIST           how completions are awaited: event, adaptive, busy (all)
  --measure LIST        latency, bandwidth (both)
  --sizes LIST          bytes of an operation, up to 1G; FIRST:LAST[:FACTOR] is a
                        range, whose factor is 4 (64,4K,64K,1M)
  --seconds SECONDS     duration of each measurement, without warm-up (0.2)
  --window N            operations outstanding at a time for the bandwidth (64)
  --memory BYTES        memory for all operations of a window, at each side (256M)
  --json FILE           the results as JSON
  --svg FILE            the results as a picture
  --device NAME         RDMA device (default: $ASIO_RDMA_DEVICE, else the one whose
                        address reaches the peer, else the best one)
  --progress            a progress line, also if it is not on a terminal
  --quiet               no progress line; a server prints no line for a client

  --listen [ADDRESS][:PORT]
                        measures for other machines, one after the other, at this TCP
                        port (18531)
  --max-size BYTES      the largest operation that it allows (1G)
  --session SECONDS     the time that it gives to each client (3600)
  --clients N           it ends after N clients

Exit status: 0 if everything was measured, 1 if a figure is missing, 2 for wrong
usage.
)";
}

} // namespace perf
