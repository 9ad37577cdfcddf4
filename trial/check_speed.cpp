// SPDX-License-Identifier: BSL-1.0
// Measurements of the library, each beside one of bare verbs.
#include "bare_verbs.hpp"
#include "check.hpp"
#include "elapsed.hpp"
#include "memory.hpp"

#include <asio_rdma/connection.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

namespace trial {

namespace {

// The library and verbs are measured by turns, and the best result of each counts: other work of
// the machine can only worsen a result, and may last as long as a round.
constexpr int rounds = 3;
double seconds_of_round(const session& s) { return s.seconds() / rounds; }

struct measured {
  double library = 0, verbs = 0;
};
template <class Library, class Verbs>
awaitable<measured> by_turns(session& s, bool smaller_is_better, Library library, Verbs verbs) {
  completion_queue_options how; // of the queue that connections and streams take
  how.completion_vector = measured_vector;
  completion_queue::set_default_options(s.io, how);
  s.remark("library and verbs by completion vector " + std::to_string(measured_vector));
  measured best;
  const auto keep = [&](double& to, double value, int round) {
    to = round == 0 ? value : smaller_is_better ? std::min(to, value) : std::max(to, value);
  };
  for (int round = 0; round < rounds; ++round) {
    keep(best.library, co_await library(), round);
    keep(best.verbs, co_await verbs(), round);
  }
  co_return best;
}

/// Measures bare verbs at both sides. The far side's result is 0.
awaitable<double> bare(session& s, flow f, bool rate) {
  const auto e = co_await link_bare(s, f);
  double result = 0;
  if (s.is_near())
    result = rate ? e->send_for(seconds_of_round(s)) : e->ask_for(seconds_of_round(s));
  else if (rate)
    e->receive_all();
  else
    e->answer_all();
  co_await s.meet();
  co_return result;
}

/// Measures READs of bare verbs: the far side reads the near side's memory, as it reads a long
/// message. Returns how many a second completed.
awaitable<double> bare_reads(session& s, std::size_t bytes) {
  const auto e = co_await link_bare(s, {1, 2, false});
  if (s.is_near()) {
    e->ask_for(0); // on iWARP the connecting side sends first
    co_await s.tell(e->lend(bytes));
    const std::string result = co_await s.hear();
    co_await s.meet();
    co_return std::stod(result);
  }
  e->answer_all();
  const double result = e->read_for(co_await s.hear_memory(), seconds_of_round(s));
  co_await s.tell(std::to_string(result));
  co_await s.meet();
  co_return result;
}

/// The same loop as that of `bare_end`, by a queue pair of the library and handlers.
class counting_end {
public:
  counting_end(session& s, const flow& f)
      : s_(s),
        flow_(f),
        memory_((2 * f.receives() + 2) * f.bytes),
        region_(s.pd, memory_.data(), memory_.size()),
        qp_(s.io),
        woken_(s.io, asio::steady_timer::time_point::max()) {
    completion_queue_options how;
    how.mode = f.busy ? completion_mode::busy : completion_mode::event;
    how.completion_vector = measured_vector;
    queue_pair_options options;
    options.send_depth = options.receive_depth = f.receives() + 2;
    qp_.open(s.pd, completion_queue(s.io, s.dev, how), options);
    for (unsigned slot = 0; slot < f.receives() + 2; ++slot)
      receive(slot);
  }

  awaitable<void> link() { co_await s_.link(qp_); }

  /// As those of `bare_end`. The coroutine sleeps while the handlers do the work.
  awaitable<double> send_for(double seconds) {
    co_await run(seconds, [](counting_end& e) { e.send_more(); });
    co_return double(posted_) / elapsed_;
  }
  awaitable<double> ask_for(double seconds) {
    co_await run(seconds, [](counting_end& e) { e.ask(); });
    co_return elapsed_ / double(posted_);
  }
  awaitable<void> receive_all() {
    co_await run(0, [](counting_end& e) {
      while (e.posted_ < e.received_ / e.flow_.group)
        e.send(more, 1);
      if (e.ended_ && e.sent_ == e.posted_)
        e.end();
    });
  }
  awaitable<void> answer_all() {
    co_await run(0, [](counting_end& e) {
      while (e.posted_ < e.received_)
        e.send(more, e.flow_.bytes);
      if (e.ended_ && e.sent_ == e.posted_)
        e.end();
    });
  }
  /// Waits for all handlers. Must be awaited before the destruction.
  awaitable<void> close() {
    step_ = nullptr;
    qp_.close();
    while (pending_ != 0)
      co_await sleep();
  }

private:
  using step_function = void (*)(counting_end&);

  void receive(std::uint64_t slot) {
    ++pending_;
    qp_.async_receive(region_.buffer(slot * flow_.bytes, flow_.bytes),
                      [this, slot](error_code ec, const received&) {
                        if (completed(ec))
                          return;
                        ++received_;
                        ended_ = ended_ || memory_[slot * flow_.bytes] == last;
                        receive(slot);
                        step();
                      });
  }
  void send(char kind, std::size_t bytes) {
    const std::uint64_t slot = flow_.receives() + 2 + posted_++ % flow_.receives();
    memory_[slot * flow_.bytes] = kind;
    ++pending_;
    qp_.async_send(region_.buffer(slot * flow_.bytes, bytes), [this](error_code ec, std::size_t) {
      if (completed(ec))
        return;
      ++sent_;
      step();
    });
  }
  /// Whether the handler of an operation has nothing more to do.
  bool completed(const error_code& ec) {
    --pending_;
    if (!ec && step_ != nullptr)
      return false;
    error_ = ec;
    woken_.cancel();
    return true;
  }
  void step() {
    if (!done_)
      step_(*this);
  }
  void send_more() {
    while (!ended_ && posted_ < (received_ + 2) * flow_.group &&
           posted_ - sent_ < flow_.receives()) {
      const bool completes = (posted_ + 1) % flow_.group == 0;
      ended_ = completes && seconds_since(begin_) > seconds_;
      send(ended_ ? last : more, flow_.bytes);
      groups_ += completes;
    }
    if (ended_ && received_ == groups_ && sent_ == posted_)
      end();
  }
  void ask() {
    if (received_ < posted_)
      return;
    if (ended_)
      return end();
    ended_ = seconds_since(begin_) > seconds_;
    send(ended_ ? last : more, flow_.bytes);
  }
  void end() {
    elapsed_ = seconds_since(begin_);
    done_ = true;
    woken_.cancel();
  }
  awaitable<void> sleep() {
    error_code ec;
    co_await woken_.async_wait(asio::redirect_error(use_awaitable, ec));
  }
  awaitable<void> run(double seconds, step_function f) {
    begin_ = clock_type::now();
    seconds_ = seconds;
    step_ = f;
    step();
    while (!done_ && !error_)
      co_await sleep();
    if (!done_)
      throw system_error(error_);
  }

  session& s_;
  flow flow_;
  std::vector<char> memory_;
  memory_region region_;
  queue_pair qp_;
  asio::steady_timer woken_;
  step_function step_ = [](counting_end&) {
  };
  std::size_t pending_ = 0; // handlers
  std::uint64_t posted_ = 0, sent_ = 0, received_ = 0, groups_ = 0;
  bool ended_ = false, done_ = false;
  error_code error_;
  clock_type::time_point begin_;
  double seconds_ = 0, elapsed_ = 0;
};

/// The library's counterpart of `bare`.
awaitable<double> by_queue_pair(session& s, flow f, bool rate) {
  counting_end e(s, f);
  double result = 0;
  std::exception_ptr failed;
  try {
    co_await e.link();
    if (s.is_near() && rate)
      result = co_await e.send_for(seconds_of_round(s));
    else if (s.is_near())
      result = co_await e.ask_for(seconds_of_round(s));
    else if (rate)
      co_await e.receive_all();
    else
      co_await e.answer_all();
    co_await s.meet();
  } catch (...) {
    failed = std::current_exception();
  }
  co_await e.close();
  if (failed)
    std::rethrow_exception(failed);
  co_return result;
}

awaitable<void> rate(session& s) {
  const flow f{64, 64, false};
  const measured m = co_await by_turns(
      s, false, [&] { return by_queue_pair(s, f, true); }, [&] { return bare(s, f, true); });
  if (s.is_near())
    s.add({"SENDs of 64 bytes", "1/s", m.library, m.verbs, false});
}

awaitable<void> round_trips(session& s, bool busy) {
  const flow f{64, 1, busy};
  const measured m = co_await by_turns(
      s, true, [&] { return by_queue_pair(s, f, false); }, [&] { return bare(s, f, false); });
  if (s.is_near())
    s.add({std::string("round trip of 64 bytes, ") + (busy ? "polling" : "sleeping"), "us",
           1e6 * m.library, 1e6 * m.verbs, true});
}

awaitable<void> latency(session& s) { return round_trips(s, false); }

awaitable<void> busy_latency(session& s) {
  co_await s.need(std::thread::hardware_concurrency() > 1,
                  "two processes that poll need two processors");
  co_await round_trips(s, true);
}

awaitable<void> keep_sending(connection& c, const registered_buffer& text,
                             clock_type::time_point end, std::uint64_t& sent) {
  while (clock_type::now() < end) {
    co_await c.async_send(text, use_awaitable);
    ++sent;
  }
}

/// Bytes a second; an empty message ends the measurement.
awaitable<double> by_connection(session& s, std::size_t size) {
  const memory_pool pool(s.pd);
  connection c(s.io, pool);
  co_await s.link(c);
  double result = 0;
  if (s.is_near()) {
    const registered_buffer text = pool.allocate(size);
    std::uint64_t sent = 0;
    const auto begin = clock_type::now();
    const auto end = begin + std::chrono::duration_cast<clock_type::duration>(
                                 std::chrono::duration<double>(seconds_of_round(s)));
    const auto send = [&] {
      return keep_sending(c, text, end, sent);
    };
    co_await (send() && send() && send() && send() && send() && send() && send() && send());
    co_await c.async_send(asio::buffer("", 0), use_awaitable);
    co_await c.async_receive(use_awaitable);
    result = double(sent * size) / seconds_since(begin);
  } else {
    for (std::size_t n = 1; n != 0;)
      n = (co_await c.async_receive(use_awaitable)).size();
    co_await c.async_send(asio::buffer("", 0), use_awaitable);
  }
  co_await c.async_close(use_awaitable);
  co_return result;
}

awaitable<void> small_messages(session& s) {
  const flow f{4096, 32, false};
  const measured m = co_await by_turns(
      s, false, [&] { return by_connection(s, f.bytes); }, [&] { return bare(s, f, true); });
  if (s.is_near())
    s.add({"messages of 4 KiB, beside SENDs", "MB/s", m.library / 1e6,
           m.verbs * double(f.bytes) / 1e6, false});
}

awaitable<void> large_messages(session& s) {
  constexpr std::size_t bytes = 1 << 20;
  const measured m = co_await by_turns(
      s, false, [&] { return by_connection(s, bytes); }, [&] { return bare_reads(s, bytes); });
  if (s.is_near())
    s.add({"messages of 1 MiB, beside READs", "MB/s", m.library / 1e6,
           m.verbs * double(bytes) / 1e6, false});
}

awaitable<double> by_stream(session& s) {
  const memory_pool pool(s.pd);
  stream c(s.io, pool);
  co_await s.link(c);
  std::vector<char> piece(256 << 10);
  std::uint64_t total = 0;
  const auto begin = clock_type::now();
  try {
    if (s.is_near()) {
      while (seconds_since(begin) < seconds_of_round(s))
        total += co_await asio::async_write(c, asio::buffer(piece), use_awaitable);
      c.shutdown(stream::shutdown_send);
    }
    for (;;) // the near side reads only the end, which follows all bytes
      co_await c.async_read_some(asio::buffer(piece), use_awaitable);
  } catch (const system_error& e) {
    if (e.code() != asio::error::eof)
      throw;
  }
  co_return double(total) / seconds_since(begin);
}

awaitable<void> stream_speed(session& s) {
  const flow f{256 << 10, 8, false};
  const measured m = co_await by_turns(
      s, false, [&] { return by_stream(s); }, [&] { return bare(s, f, true); });
  if (s.is_near())
    s.add({"a stream, beside SENDs of 256 KiB", "MB/s", m.library / 1e6,
           m.verbs * double(f.bytes) / 1e6, false});
}

} // namespace

std::span<const check> speed_checks() {
  static constexpr check checks[] = {
      {"rate", "", "SENDs of 64 bytes a second", rate},
      {"latency", "", "round trips of 64 bytes, both sides asleep between", latency},
      {"busy_latency", "", "round trips of 64 bytes, both sides polling", busy_latency},
      {"small_messages", "", "messages of 4 KiB of a connection", small_messages},
      {"large_messages", "", "messages of 1 MiB of a connection", large_messages},
      {"stream_speed", "", "bytes of a stream", stream_speed},
  };
  return checks;
}

} // namespace trial
