// SPDX-License-Identifier: BSL-1.0
//
// One kind of work on a real device, by loops on verbs and by the library in turns. Prints JSON:
// the seconds of each run. `benchmarks/run` starts it for each kind and makes tables of it.
#include "asio_loop.hpp"
#include "connection_loop.hpp"
#include "lock_loop.hpp"
#include "stream_loop.hpp"
#include "verbs_loop.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <map>
#include <memory>
#include <sched.h>
#include <sys/prctl.h>
#include <vector>

namespace {

using namespace bench;

const std::map<std::string, work> kinds{
    {"send", work::send}, {"read", work::read},   {"rate", work::rate}, {"write", work::write},
    {"bulk", work::bulk}, {"batch", work::batch}, {"lock", work::lock}};
const std::map<std::string, mode> modes{
    {"event", mode::event}, {"adaptive", mode::adaptive}, {"busy", mode::busy}};

std::unique_ptr<loop> make(const std::string& by, const plan& p, bool messages, cm_end* active,
                           cm_end* passive, process_pipe* to_active) {
  if (by == "verbs" || by == "epoll" || by == "copying") {
    const verbs_way way = by == "epoll"     ? verbs_way::epoll
                          : by == "copying" ? verbs_way::copying
                                            : verbs_way::plain;
    return std::make_unique<verbs_loop>(p, way, active, passive, to_active);
  }
  if (by == "stream")
    return std::make_unique<stream_loop<rdma_streams>>(p, active, passive, to_active);
  if (by == "plain")
    return std::make_unique<stream_loop<plain_streams>>(p, active, passive, to_active);
  if (by == "tcp")
    return std::make_unique<stream_loop<tcp_streams>>(p, active, passive, to_active);
  if (by == "nagle")
    return std::make_unique<stream_loop<default_tcp_streams>>(p, active, passive, to_active);
  if (by == "global" || by == "singles" || by == "batches")
    return std::make_unique<global_loop>(p, by == "batches", *active);
  if (by == "alock")
    return std::make_unique<lock_loop<asymmetric_lock>>(p, *active);
  if (by == "spin")
    return std::make_unique<lock_loop<spin_lock>>(p, *active);
  if (by == "mcs")
    return std::make_unique<lock_loop<mcs_lock>>(p, *active);
  using memory = connection_loop::memory;
  if (by == "messages" || by == "own_messages" || by == "plain_messages") {
    const memory m = by == "messages"       ? memory::registered
                     : by == "own_messages" ? memory::own
                                            : memory::plain;
    return std::make_unique<connection_loop>(p, style::callbacks, m, active, passive, to_active);
  }
  const style s = by == "callbacks"  ? style::callbacks
                  : by == "awaiters" ? style::awaiters
                                     : style::coroutines;
  if (messages)
    return std::make_unique<connection_loop>(p, s, memory::registered, active, passive, to_active);
  return std::make_unique<asio_loop>(p, s, active, passive, to_active);
}

// Gives this process the first or the last of its processors, if it has several. Else Linux may
// have both processes share one for some time, where a wake-up takes a third of the time.
void take_processor(bool last) {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  check(::sched_getaffinity(0, sizeof(all), &all) == 0, "sched_getaffinity");
  std::size_t chosen = CPU_SETSIZE;
  for (std::size_t i = 0; i != CPU_SETSIZE && (last || chosen == CPU_SETSIZE); ++i)
    if (CPU_ISSET(i, &all))
      chosen = i;
  CPU_SET(chosen, &one);
  check(::sched_setaffinity(0, sizeof(one), &one) == 0, "sched_setaffinity");
}

// A loop, its ends, and the other process if there is one.
struct contestant {
  std::string by;
  std::unique_ptr<cm_end> active, passive;
  process_pipe to_active;
  std::unique_ptr<loop> runs;
  pid_t other = 0;
  std::vector<double> seconds;
  queue_counters counters;

  // Before anything else, as verbs do not survive fork().
  void fork_other(const plan& p, bool messages) {
    other = ::fork();
    check(other >= 0, "fork");
    if (other != 0)
      return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    take_processor(true);
    passive = std::make_unique<cm_end>(p.address);
    make(by, p, messages, nullptr, passive.get(), &to_active)->serve();
  }

  void prepare(const plan& p, bool messages) {
    active = std::make_unique<cm_end>(p.address);
    if (other == 0)
      passive = std::make_unique<cm_end>(p.address);
    runs = make(by, p, messages, active.get(), passive.get(), &to_active);
  }

  double run(std::uint64_t operations) {
    const queue_counters before = runs->counters();
    const auto begin = std::chrono::steady_clock::now();
    runs->run(operations);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    const queue_counters after = runs->counters();
    counters = {after.polls - before.polls, after.arms - before.arms, after.events - before.events,
                after.registrations - before.registrations};
    return time.count();
  }
};

// The number of operations that take about `seconds`.
std::uint64_t calibrate(contestant& c, double seconds) {
  std::uint64_t n = 16;
  for (double t = c.run(n); t < seconds / 4; t = c.run(n))
    n *= 2;
  const double t = std::min({c.run(n), c.run(n), c.run(n)});
  return std::max<std::uint64_t>(16,
                                 static_cast<std::uint64_t>(static_cast<double>(n) * seconds / t));
}

void print(const std::vector<contestant>& all, std::uint64_t operations) {
  std::cout << "{\"operations\": " << operations << ", \"runs\": {";
  for (const contestant& c : all) {
    std::cout << (&c == &all.front() ? "" : ", ") << '"' << c.by << "\": {\"seconds\": [";
    for (std::size_t i = 0; i < c.seconds.size(); ++i)
      std::cout << (i == 0 ? "" : ", ") << c.seconds[i];
    std::cout << "], \"polls\": " << c.counters.polls << ", \"arms\": " << c.counters.arms
              << ", \"events\": " << c.counters.events
              << ", \"registrations\": " << c.counters.registrations << '}';
  }
  std::cout << "}}" << std::endl;
}

} // namespace

int main(int argc, char* argv[]) {
  CLI::App app("Measures loops on verbs and by the library, in turns, on the device of an address");
  plan p;
  std::vector<std::string> by{"verbs", "callbacks", "coroutines"};
  unsigned rounds = 7;
  std::uint64_t operations = 0;
  double seconds = 0.3;
  bool two_processes = false, messages = false, commanded = false;
  app.add_option("work", p.what,
                 "operation of the loops: send (round trips), read, rate (sends), write, bulk "
                 "(reads), batch (8 words written) or lock")
      ->required()
      ->transform(CLI::CheckedTransformer(kinds));
  app.add_option("--mode", p.how, "mode of the completion queue")
      ->transform(CLI::CheckedTransformer(modes));
  app.add_option("--bytes", p.bytes, "bytes of an operation")
      ->check(CLI::Range(1u, std::uint32_t(memory::half)));
  app.add_option("--address", p.address, "IP address of the device")
      ->envname("ASIO_RDMA_ADDRESS")
      ->required()
      ->check(CLI::ValidIPV4);
  app.add_option(
         "--by", by,
         "loops. On verbs: verbs, epoll (waits in epoll_wait), copying (from and to plain memory). "
         "By the library: callbacks, coroutines, awaiters (coroutines of a type of their own). For "
         "send and rate also, with callbacks: messages, "
         "stream, plain_messages and plain (from plain memory), tcp (no_delay), nagle (TCP by "
         "default). For bulk also own_messages "
         "(from memory that the program has registered) and plain_messages. For read of 8 bytes: "
         "global. For batch: singles, batches. For lock: alock, spin, mcs")
      ->check(CLI::IsMember({"verbs", "epoll", "copying", "callbacks", "coroutines", "awaiters",
                             "messages", "own_messages", "plain_messages", "stream", "plain", "tcp",
                             "nagle", "global", "singles", "batches", "alock", "spin", "mcs"}));
  app.add_option("--rounds", rounds, "number of runs of each loop");
  app.add_option(
      "--operations", operations,
      "operations of each run (default: as many as take the first loop --seconds, and the "
      "slowest four times as long)");
  app.add_option("--seconds", seconds, "duration of a run");
  app.add_option("--locks", p.locks, "locks of each node, for lock")->check(CLI::Range(1, 10'000));
  app.add_option("--local", p.local, "percentage of the taken locks that belong to the node itself")
      ->check(CLI::Range(0u, 100u));
  app.add_option("--window", p.in_flight, "operations in flight")->check(CLI::Range(1u, 64u));
  app.add_flag("--messages", messages,
               "the library's loops use connections; for send, rate and bulk (messages)");
  app.add_flag("--two-processes", two_processes,
               "each end is a process; for send and rate, and for loops that are not on verbs");
  app.add_flag("--any-thread", p.any_thread,
               "streams, sockets and connections have an io_context for any thread, as is the "
               "default (here: for one thread)");
  app.add_flag("--commanded", commanded,
               "runs the first loop once for each line of standard input, which is the number of "
               "operations, and prints the seconds of the run");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (messages ? p.what == work::read || p.what == work::write : p.what == work::bulk) {
    std::cerr << "bench_device: --messages is for send, rate and bulk, and bulk for --messages\n";
    return 2;
  }
  const auto bytes_alone = [](const std::string& b) {
    return b == "messages" || b == "own_messages" || b == "plain_messages" || b == "stream" ||
           b == "plain" || b == "tcp" || b == "nagle";
  };
  const auto of_bulk = [&](const std::string& b) {
    return messages && p.what == work::bulk && (b == "own_messages" || b == "plain_messages");
  };
  if (p.what != work::send && p.what != work::rate &&
      std::any_of(by.begin(), by.end(),
                  [&](const std::string& b) { return bytes_alone(b) && !of_bulk(b); })) {
    std::cerr << "bench_device: messages, stream, plain, tcp and nagle are for send and rate, and "
                 "own_messages and plain_messages for bulk, too\n";
    return 2;
  }
  const auto apart = [&](const std::string& b) {
    const bool on_verbs = b == "verbs" || b == "epoll" || b == "copying";
    return p.what == work::send || messages || bytes_alone(b) || (p.what == work::rate && on_verbs);
  };
  if (two_processes && !std::all_of(by.begin(), by.end(), apart)) {
    std::cerr << "bench_device: --two-processes is for send, rate on verbs, --messages, messages, "
                 "stream, plain, tcp and nagle\n";
    return 2;
  }

  // Loops that can do one kind of work only.
  const std::map<std::string, work> only{{"global", work::read},   {"singles", work::batch},
                                         {"batches", work::batch}, {"alock", work::lock},
                                         {"spin", work::lock},     {"mcs", work::lock}};
  for (const std::string& b : by) {
    const auto found = only.find(b);
    if (found == only.end() ? p.what == work::batch || p.what == work::lock
                            : p.what != found->second || (b == "global" && p.bytes != 8)) {
      std::cerr << "bench_device: that is no work for " << b << '\n';
      return 2;
    }
  }
  if (two_processes && (p.what == work::batch || p.what == work::lock || p.what == work::read)) {
    std::cerr << "bench_device: one process has both nodes\n";
    return 2;
  }
  std::vector<contestant> all(by.size());
  for (std::size_t i = 0; i < by.size(); ++i) {
    all[i].by = by[i];
    if (two_processes)
      all[i].fork_other(p, messages);
  }
  if (two_processes)
    take_processor(false);
  for (contestant& c : all)
    c.prepare(p, messages);
  if (commanded) {
    while (std::cin >> operations)
      std::cout << all.front().run(operations) << std::endl;
    std::_Exit(0);
  }
  if (operations == 0) {
    operations = calibrate(all.front(), seconds);
    double longest = 0;
    for (contestant& c : all)
      longest = std::max(longest, 4 * c.run(operations / 4 + 1));
    // A loop that is much slower than the first would take most of the time.
    if (longest > 4 * seconds)
      operations = std::max<std::uint64_t>(
          16, static_cast<std::uint64_t>(static_cast<double>(operations) * 4 * seconds / longest));
  }
  for (unsigned round = 0; round < rounds; ++round)
    for (contestant& c : all)
      c.seconds.push_back(c.run(operations));
  print(all, operations);
  for (const contestant& c : all)
    if (c.other != 0)
      ::kill(c.other, SIGKILL);
  std::cout.flush();
  std::_Exit(0);
}
