// SPDX-License-Identifier: BSL-1.0
// The statistics of a context as JSON and in the text format of Prometheus.
#include <asio_rdma/statistics.hpp>

#include "observing/json_text.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace asio_rdma {
namespace {

using detail::json_text;

using link = context_statistics::link;

const char* kind_of(const link& l) noexcept { return l.is_stream ? "stream" : "connection"; }

const char* name_of(queue_pair_state s) noexcept {
  switch (s) {
  case queue_pair_state::open:
    return "open";
  case queue_pair_state::connected:
    return "connected";
  case queue_pair_state::failed:
    return "failed";
  default:
    return "closed";
  }
}

const char* name_of(completion_mode m) noexcept {
  switch (m) {
  case completion_mode::busy:
    return "busy";
  case completion_mode::manual:
    return "manual";
  case completion_mode::event:
    return "event";
  default:
    return "adaptive";
  }
}

template <class Number>
std::string text_of(Number n) {
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), n).ptr;
  return {text.data(), end};
}

std::string seconds_of(std::chrono::nanoseconds t) {
  return text_of(static_cast<double>(t.count()) / 1e9); // correctly rounded
}

// The names, help texts and values of all counters, for both formats. A counter only grows; a gauge
// is a value of the moment.
enum class type { counter, gauge };
template <class Object>
struct value {
  const char* name;
  type what;
  const char* help;
  std::uint64_t (*of)(const Object&);
};

constexpr value<link> link_values[] = {
    {"connected", type::gauge, "1 if the link is connected, 0 before and after.",
     [](const link& l) -> std::uint64_t {
       return l.state == queue_pair_state::connected;
     }},
    {"frames_sent", type::counter, "SENDs: data and the library's own frames.",
     [](const link& l) -> std::uint64_t {
       return l.counters.frames_sent;
     }},
    {"frames_received", type::counter, "Frames of the peer that have arrived.",
     [](const link& l) -> std::uint64_t {
       return l.counters.frames_received;
     }},
    {"bytes_sent", type::counter, "Bytes of messages or of the stream, without headers.",
     [](const link& l) -> std::uint64_t {
       return l.counters.bytes_sent;
     }},
    {"bytes_received", type::counter, "Bytes that the program has received.",
     [](const link& l) -> std::uint64_t {
       return l.counters.bytes_received;
     }},
    {"credit_waits", type::counter, "Waits of data because the peer had no receive for it.",
     [](const link& l) -> std::uint64_t {
       return l.counters.credit_waits;
     }},
    {"registrations", type::counter, "Registrations of memory for single operations.",
     [](const link& l) -> std::uint64_t {
       return l.counters.registrations;
     }},
    {"requests_in_flight", type::gauge, "Work requests that have not completed.",
     [](const link& l) -> std::uint64_t {
       return l.counters.requests_in_flight;
     }},
    {"credits", type::gauge, "Frames that the peer can receive.",
     [](const link& l) -> std::uint64_t {
       return l.counters.credits;
     }},
    {"messages_sent", type::counter, "Messages that were sent completely.",
     [](const link& l) -> std::uint64_t {
       return l.counters.messages_sent;
     }},
    {"messages_received", type::counter, "Messages that the program has received.",
     [](const link& l) -> std::uint64_t {
       return l.counters.messages_received;
     }},
    {"rendezvous_sent", type::counter, "Sent messages that the peer has read.",
     [](const link& l) -> std::uint64_t {
       return l.counters.rendezvous_sent;
     }},
    {"rendezvous_received", type::counter, "Received messages that this side has read.",
     [](const link& l) -> std::uint64_t {
       return l.counters.rendezvous_received;
     }},
    {"remote_operations", type::counter, "Operations on the peer's memory.",
     [](const link& l) -> std::uint64_t {
       return l.counters.remote_operations;
     }},
    {"remote_bytes", type::counter, "Bytes that these operations have moved.",
     [](const link& l) -> std::uint64_t {
       return l.counters.remote_bytes;
     }},
};

using acceptor = context_statistics::acceptor;
constexpr value<acceptor> acceptor_values[] = {
    {"requests", type::counter, "Requests of connectors that have arrived.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.requests;
     }},
    {"accepted", type::counter, "Connections that were established.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.accepted;
     }},
    {"refused_backlog", type::counter, "Requests refused because the backlog was full.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.refused_backlog;
     }},
    {"refused_incompatible", type::counter, "Requests refused for their protocol.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.refused_incompatible;
     }},
    {"refused_admission", type::counter, "Requests that the program does not admit.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.refused_admission;
     }},
    {"rejected", type::counter, "Requests that the program has rejected.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.rejected;
     }},
    {"aborted", type::counter, "Requests whose connector has given up.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.aborted;
     }},
    {"failed", type::counter, "Requests that could not be accepted for another reason.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.failed;
     }},
    {"gave_way", type::counter, "Silent connectors that gave way to others.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.gave_way;
     }},
    {"handshakes", type::gauge, "Requests that are being accepted.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.handshakes;
     }},
    {"waiting", type::gauge, "Requests that wait to be accepted.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.waiting;
     }},
    {"pending_accepts", type::gauge, "Operations that wait for a request.",
     [](const acceptor& a) -> std::uint64_t {
       return a.counters.pending_accepts;
     }},
};

using queue = context_statistics::completion_queue;
constexpr value<queue> queue_values[] = {
    {"polls", type::counter, "Calls of ibv_poll_cq.",
     [](const queue& q) -> std::uint64_t {
       return q.counters.polls;
     }},
    {"arms", type::counter, "Calls of ibv_req_notify_cq.",
     [](const queue& q) -> std::uint64_t {
       return q.counters.arms;
     }},
    {"events", type::counter, "Events of the completion channel.",
     [](const queue& q) -> std::uint64_t {
       return q.counters.events;
     }},
    {"completions", type::counter, "Work completions.",
     [](const queue& q) -> std::uint64_t {
       return q.counters.completions;
     }},
};

using queue_pair = context_statistics::queue_pair;
constexpr value<queue_pair> queue_pair_values[] = {
    {"connected", type::gauge, "1 if the queue pair is connected, 0 before and after.",
     [](const queue_pair& q) -> std::uint64_t {
       return q.state == queue_pair_state::connected;
     }},
};

using pool = context_statistics::pool;
constexpr value<pool> pool_values[] = {
    {"limit_bytes", type::gauge, "The most bytes that the pool registers.",
     [](const pool& p) -> std::uint64_t {
       return p.limit;
     }},
    {"registered_bytes", type::gauge, "Registered bytes.",
     [](const pool& p) -> std::uint64_t {
       return p.counters.bytes_registered;
     }},
    {"huge_page_bytes", type::gauge, "Registered bytes in reserved huge pages.",
     [](const pool& p) -> std::uint64_t {
       return p.counters.bytes_huge;
     }},
    {"used_bytes", type::gauge, "Bytes of the blocks in use.",
     [](const pool& p) -> std::uint64_t {
       return p.counters.bytes_in_use;
     }},
    {"used_blocks", type::gauge, "Blocks in use.",
     [](const pool& p) -> std::uint64_t {
       return p.counters.blocks_in_use;
     }},
    {"arenas", type::gauge, "Registered arenas.",
     [](const pool& p) -> std::uint64_t {
       return p.counters.arenas;
     }},
};

// --- JSON ------------------------------------------------------------------------------------

/// The members of an object, or the elements of an array.
class json_list {
public:
  json_list(std::string& to, char begin, char end) : to_(to), end_(end) { to_ += begin; }
  json_list(const json_list&) = delete;
  ~json_list() { to_ += end_; }

  std::string& next() {
    if (std::exchange(any_, true))
      to_ += ',';
    return to_;
  }
  std::string& next(std::string_view name) { return ((next() += json_text(name)) += ':'); }

private:
  std::string& to_;
  char end_;
  bool any_ = false;
};

template <class Object, std::size_t N>
void add(json_list& to, const value<Object> (&values)[N], const Object& from) {
  for (const value<Object>& v : values)
    to.next(v.name) += text_of(v.of(from));
}

void add(std::string& to, const latency_statistics& from) {
  json_list object(to, '{', '}');
  object.next("last") += text_of(from.last.count());
  object.next("sum") += text_of(from.sum.count());
  json_list counts(object.next("counts"), '[', ']');
  for (const std::uint64_t n : from.counts)
    counts.next() += text_of(n);
}

template <class Objects, class Add>
void add_all(json_list& to, std::string_view name, const Objects& objects, Add add_one) {
  json_list array(to.next(name), '[', ']');
  for (const auto& object : objects) {
    json_list one(array.next(), '{', '}');
    add_one(one, object);
  }
}

void write_json(std::string& result, const context_statistics& s) {
  json_list all(result, '{', '}');
  add_all(all, "links", s.links, [](json_list& to, const link& l) {
    to.next("kind") += json_text(kind_of(l));
    to.next("device") += json_text(l.device);
    to.next("queue_pair") += text_of(l.queue_pair);
    to.next("state") += json_text(name_of(l.state));
    to.next("peer") += json_text(l.peer);
    add(to, link_values, l);
    if (l.latencies) {
      add(to.next("send_latency"), l.latencies->sends);
      add(to.next("remote_latency"), l.latencies->remote);
    }
  });
  add_all(all, "acceptors", s.acceptors, [](json_list& to, const acceptor& a) {
    to.next("endpoint") += json_text(a.endpoint);
    add(to, acceptor_values, a);
  });
  add_all(all, "queue_pairs", s.queue_pairs, [](json_list& to, const queue_pair& q) {
    to.next("device") += json_text(q.device);
    to.next("queue_pair") += text_of(q.number);
    to.next("state") += json_text(name_of(q.state));
  });
  add_all(all, "completion_queues", s.completion_queues, [](json_list& to, const queue& q) {
    to.next("device") += json_text(q.device);
    to.next("mode") += json_text(name_of(q.mode));
    add(to, queue_values, q);
  });
  add_all(all, "pools", s.pools, [](json_list& to, const pool& p) {
    to.next("device") += json_text(p.device);
    add(to, pool_values, p);
  });
}

// --- Prometheus ------------------------------------------------------------------------------

using label = std::pair<const char*, std::string>;

// Exposition formats, "Text format details": backslash, quote and line feed of a label's value.
std::string labels_of(std::initializer_list<label> labels, std::string_view last = {}) {
  std::string result = "{";
  for (const auto& [name, text] : labels) {
    if (result.size() != 1)
      result += ',';
    (result += name) += "=\"";
    for (const char c : text)
      if (c == '\n')
        result += "\\n";
      else if (c == '"' || c == '\\')
        (result += '\\') += c;
      else
        result += c;
    result += '"';
  }
  if (!last.empty())
    (result += ',') += last;
  return result += '}';
}

void begin_metric(std::string& to, const std::string& name, const char* type_name,
                  const char* help) {
  ((((to += "# HELP ") += name) += ' ') += help) += '\n';
  ((((to += "# TYPE ") += name) += ' ') += type_name) += '\n';
}

void add_sample(std::string& to, const std::string& name, const std::string& labels,
                const std::string& number) {
  ((((to += name) += labels) += ' ') += number) += '\n';
}

// All samples of a metric are one group.
template <class Object, std::size_t N, class Labels>
void add_metrics(std::string& to, const char* prefix, const value<Object> (&values)[N],
                 const std::vector<Object>& objects, Labels labels) {
  if (objects.empty())
    return;
  for (const value<Object>& v : values) {
    const bool counts = v.what == type::counter;
    std::string name;
    name.reserve(64); // gcc 12 takes an append to a short string for an overflow
    ((name += prefix) += v.name) += counts ? "_total" : "";
    begin_metric(to, name, counts ? "counter" : "gauge", v.help);
    for (std::size_t i = 0; i < objects.size(); ++i)
      add_sample(to, name, labels(objects[i], i), text_of(v.of(objects[i])));
  }
}

std::string link_labels(const link& l, std::string_view last = {}) {
  return labels_of({{"kind", kind_of(l)},
                    {"device", l.device},
                    {"queue_pair", text_of(l.queue_pair)},
                    {"peer", l.peer}},
                   last);
}

// Classes count times below their bound, and buckets those up to it: the bound is one nanosecond
// less.
void add_histogram(std::string& to, const std::string& name, const link& l,
                   const latency_statistics& from) {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i + 1 < from.counts.size(); ++i) {
    all += from.counts[i];
    const auto bound = std::chrono::nanoseconds((std::int64_t(1) << i) - 1);
    add_sample(to, name + "_bucket", link_labels(l, "le=\"" + seconds_of(bound) + "\""),
               text_of(all));
  }
  all += from.counts.back();
  add_sample(to, name + "_bucket", link_labels(l, "le=\"+Inf\""), text_of(all));
  add_sample(to, name + "_sum", link_labels(l), seconds_of(from.sum));
  add_sample(to, name + "_count", link_labels(l), text_of(all));
}

void add_latencies(std::string& to, const std::vector<link>& links, const std::string& which,
                   const char* help, latency_statistics link_latencies::*part) {
  bool any = false;
  const std::string name = "asio_rdma_link_" + which + "_latency_seconds";
  for (const link& l : links)
    if (l.latencies) {
      if (!std::exchange(any, true))
        begin_metric(to, name, "histogram", help);
      add_histogram(to, name, l, (*l.latencies).*part);
    }
  if (!any)
    return;
  const std::string last = "asio_rdma_link_" + which + "_last_latency_seconds";
  begin_metric(to, last, "gauge", "The latency of the last of them.");
  for (const link& l : links)
    if (l.latencies)
      add_sample(to, last, link_labels(l), seconds_of(((*l.latencies).*part).last));
}

} // namespace

std::string to_json(const context_statistics& s) {
  std::string result;
  write_json(result, s);
  return result;
}

std::string to_prometheus(const context_statistics& s) {
  std::string result;
  add_metrics(result, "asio_rdma_link_", link_values, s.links,
              [](const link& l, std::size_t) { return link_labels(l); });
  add_latencies(result, s.links, "send", "Times of SENDs.", &link_latencies::sends);
  add_latencies(result, s.links, "remote", "Times of RDMA READs, WRITEs and atomics.",
                &link_latencies::remote);
  add_metrics(result, "asio_rdma_acceptor_", acceptor_values, s.acceptors,
              [](const context_statistics::acceptor& a, std::size_t) {
                return labels_of({{"endpoint", a.endpoint}});
              });
  add_metrics(result, "asio_rdma_queue_pair_", queue_pair_values, s.queue_pairs,
              [](const context_statistics::queue_pair& q, std::size_t) {
                return labels_of({{"device", q.device}, {"queue_pair", text_of(q.number)}});
              });
  add_metrics(
      result, "asio_rdma_completion_queue_", queue_values, s.completion_queues,
      [](const queue& q, std::size_t i) {
        return labels_of({{"device", q.device}, {"queue", text_of(i)}, {"mode", name_of(q.mode)}});
      });
  add_metrics(result, "asio_rdma_pool_", pool_values, s.pools, [](const pool& q, std::size_t i) {
    return labels_of({{"device", q.device}, {"pool", text_of(i)}});
  });
  return result;
}

} // namespace asio_rdma
