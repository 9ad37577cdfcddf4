// SPDX-License-Identifier: BSL-1.0
// A run of chaos: two servers and clients of each kind in processes of their own, to which faults
// happen by a printed seed. Processes are killed and stopped, links are cut, registrations are
// refused, the device is removed. Every byte and every count is compared. Each minute the faults
// end, and each client must go on with each server. Then the clients are ended, and the server that
// is never killed must have no more memory, descriptors and objects of the device than after the
// warm-up.
#include "chaos/ledger.hpp"
#include "chaos/usage.hpp"
#include "device/support/long_run.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <random>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace chaos {
namespace {

using clock_type = std::chrono::steady_clock;
using namespace std::chrono_literals;

// A client makes a round within a second. Faults end within a few seconds: stopped processes,
// retries, the server's start.
constexpr auto longest_pause = 90s;
constexpr auto stretch = 60s; // of faults
// When a client has been killed, its peer notices within so many ticks of its own, which are four
// seconds (`connection_options()`).
constexpr std::uint32_t longest_end = 200;
// Of a process that has clients, or is one, from its third second on.
constexpr std::uint64_t most_growth = 64 << 20;
constexpr std::uint64_t small_pool = 6 << 20;

struct options {
  double seconds = 60;
  std::uint32_t seed = 1;
  int role = -1; // the place in the ledger; -1: the driver
  std::vector<std::string> clients_by;
};

class driver {
public:
  explicit driver(const options& o) : options_(o), random_(o.seed) {}
  ~driver() {
    for (std::size_t i = 0; i < processes; ++i)
      end(i);
  }

  /// Returns whether all was right.
  bool run() {
    std::printf("seed %u\n", unsigned(options_.seed));
    std::fflush(stdout);
    for (std::size_t i = 0; i < processes; ++i)
      start(i);
    warm_up();
    rest();
    const auto over = clock_type::now() + std::chrono::duration_cast<clock_type::duration>(
                                              std::chrono::duration<double>(options_.seconds));
    while (right_ && clock_type::now() < over) {
      disturb(std::min(over, clock_type::now() + stretch));
      go_on();
      rest();
    }
    for (std::size_t i = 0; i < processes; ++i)
      end(i);
    summary();
    return right_;
  }

private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

  void disturb(clock_type::time_point until) {
    faults_ = true;
    for (std::size_t i = 0; i < processes; ++i)
      if (i != kept) {
        end(i);
        start(i);
      }
    while (right_ && clock_type::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50 + below(500)));
      fault();
      look();
    }
  }

  void start(std::size_t place) {
    if (place < servers) {
      server_entry& s = ledger_->server[place];
      s.messages_port = s.bytes_port = s.nodes_port = s.leases_port = 0;
    }
    entry& e = ledger_->of[place];
    pending_[place] = nullptr;
    e.taken = e.wanted.load();
    e.early = e.resident = 0;
    seen_[place] = {clock_type::now(), e.rounds};
    // Registrations of some processes are refused from their start on.
    std::string settings = "ASIO_RDMA_SOFT=seed=" + std::to_string(below(1000));
    if (device_has_faults_ && faults_ && below(4) == 0) {
      settings += ",fail=reg_mr:3%:enomem";
      ++happened_["starts with some registrations refused"];
    }
    std::vector<std::string> own{settings, "CHAOS_LEDGER=" + std::to_string(ledger_.descriptor()),
                                 "CHAOS_SERVERS=" + address_};
    // The pool of others has room for some of their messages only.
    if (faults_ && below(4) == 0) {
      own.push_back("CHAOS_POOL=" + std::to_string(small_pool));
      ++happened_["starts with a small pool"];
    }
    std::vector<char*> environment;
    for (std::string& s : own)
      environment.push_back(s.data());
    for (char** v = environ; *v != nullptr; ++v)
      if (std::strncmp(*v, "ASIO_RDMA_SOFT=", 15) != 0)
        environment.push_back(*v);
    environment.push_back(nullptr);
    std::vector<std::string> command;
    if (place >= servers)
      command = options_.clients_by;
    command.insert(command.end(), {std::filesystem::read_symlink("/proc/self/exe").string(),
                                   "--role=" + std::to_string(place),
                                   "--seed=" + std::to_string(below(1'000'000))});
    std::vector<char*> arguments;
    for (std::string& s : command)
      arguments.push_back(s.data());
    arguments.push_back(nullptr);
    if (::posix_spawnp(&pids_[place], arguments[0], nullptr, nullptr, arguments.data(),
                       environment.data()) != 0) {
      pids_[place] = 0;
      fail("a process cannot be started", place);
    }
    stopped_until_[place] = {};
  }
  void end(std::size_t place) {
    if (pids_[place] == 0)
      return;
    ::kill(pids_[place], SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(pids_[place], 0), &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) // it had ended before
      judge(place, status);
  }
  /// A process has ended by itself.
  void judge(std::size_t place, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == device_gone && place != kept)
      return;
    std::printf("status %d\n", status);
    fail("a process has ended by itself", place);
  }
  void fail(const char* what, std::size_t place) {
    std::printf("failed: %s (process %zu)\n", what, place);
    right_ = false;
  }

  void fault() {
    std::size_t place = below(3) == 0 ? below(servers) : servers + below(clients);
    const std::uint32_t what = below(device_has_faults_ ? 8 : 2);
    if (place == kept && (what == 0 || what == 5)) // a removal ends its process
      place = 0;
    switch (what) {
    case 0:
      ++happened_["kills"];
      end(place);
      return start(place);
    case 1:
      if (stopped_until_[place] != clock_type::time_point())
        return;
      ++happened_["stops"];
      ::kill(pids_[place], SIGSTOP);
      stopped_until_[place] = clock_type::now() + std::chrono::milliseconds(20 + below(3000));
      return;
    case 2:
      set(place, "drop=now", "cut links");
      return;
    case 3:
      set(place, "kill=now", "connections of TCP reset");
      return;
    case 4:
      set(place, "flap=now:" + std::to_string(10 + below(2000)) + "ms", "links down for a moment");
      return;
    case 5:
      if (below(4) == 0)
        set(place, "removal=5ms,event=now:device_fatal", "removals of the device");
      return;
    case 6:
      set(place, below(2) == 0 ? "delay=request:2%:20ms" : "fail=request:0.1%:retry",
          "times that some requests were slow or failed");
      return;
    default:
      set(place, "fail=reg_mr:10%:enomem", "times that some registrations were refused");
    }
  }
  /// Gives a process settings of its device, if it has taken over the last ones. They are counted
  /// as `what` when the process has taken them over.
  bool set(std::size_t place, const std::string& settings, const char* what = nullptr) {
    entry& e = ledger_->of[place];
    if (e.taken != e.wanted || settings.size() >= e.settings.size())
      return false;
    count_taken(place);
    std::strcpy(e.settings.data(), settings.c_str());
    pending_[place] = what;
    ++e.wanted;
    return true;
  }
  void count_taken(std::size_t place) {
    const entry& e = ledger_->of[place];
    if (pending_[place] != nullptr && e.taken == e.wanted)
      ++happened_[std::exchange(pending_[place], nullptr)];
  }

  void look() {
    for (std::size_t i = 0; i < processes && right_; ++i) {
      if (pids_[i] == 0) // a client in a rest
        continue;
      count_taken(i);
      if (stopped_until_[i] != clock_type::time_point() && clock_type::now() > stopped_until_[i]) {
        ::kill(pids_[i], SIGCONT);
        stopped_until_[i] = {};
      }
      int status = 0;
      if (::waitpid(pids_[i], &status, WNOHANG) == pids_[i]) {
        pids_[i] = 0;
        judge(i, status);
        if (!right_)
          return;
        ++happened_["processes started again after a removal"];
        start(i);
      }
      entry& e = ledger_->of[i];
      if (!test::is_sanitized && e.early != 0 && e.resident > e.early + most_growth)
        return fail("memory grows", i);
      if (i < servers)
        continue;
      if (e.rounds != seen_[i].rounds)
        seen_[i] = {clock_type::now(), e.rounds};
      else if (clock_type::now() > seen_[i].at + longest_pause)
        return fail("a client makes no progress", i);
    }
  }

  /// Without faults no round may break, when the servers have started. One of each client may: a
  /// machine with much other work can be too slow for it.
  void warm_up() {
    go_on();
    std::uint64_t before[processes];
    for (std::size_t i = servers; i < processes; ++i)
      before[i] = ledger_->of[i].broken;
    go_on(10);
    for (std::size_t i = servers; i < processes; ++i)
      if (ledger_->of[i].broken > before[i] + 1)
        fail("rounds break without faults", i);
  }

  /// Ends the faults of all processes. Then each client must make whole rounds with each server.
  void go_on(std::uint64_t rounds = 3) {
    faults_ = false;
    for (std::size_t i = 0; i < processes; ++i)
      calm(i);
    std::uint64_t wanted[processes][servers];
    for (std::size_t i = servers; i < processes; ++i) {
      for (std::size_t s = 0; s < servers; ++s)
        wanted[i][s] = ledger_->of[i].rounds_with[s] + rounds;
      seen_[i].at = clock_type::now();
    }
    for (std::size_t i = servers; i < processes; ++i)
      for (std::size_t s = 0; s < servers; ++s)
        wait("a client makes no rounds with one of the servers", i,
             [&] { return ledger_->of[i].rounds_with[s] >= wanted[i][s]; });
  }
  void calm(std::size_t place) {
    ::kill(pids_[place], SIGCONT);
    stopped_until_[place] = {};
    constexpr const char* what = "a process takes no settings";
    wait(what, place, [&] { return set(place, "seed=1"); });
    wait(what, place, [&] { return ledger_->of[place].taken == ledger_->of[place].wanted; });
  }

  /// Ends the clients. Without them the server that is never killed must have no more than when it
  /// had none for the first time, which is at the end of the warm-up.
  void rest() {
    if (!right_)
      return;
    for (std::size_t i = servers; i < processes; ++i)
      end(i);
    const bool is_first = rests_++ == 0;
    std::uint32_t since = ledger_->of[kept].ticks;
    wait("the server that is never killed has more than after the warm-up", kept, [&] {
      const usage now(ledger_->of[kept]);
      if (now.objects != now_.objects)
        since = ledger_->of[kept].ticks;
      now_ = now;
      if (!is_first)
        return now.is_within(first_);
      first_ = now;
      return ledger_->of[kept].ticks - since > longest_end;
    });
    if (!right_)
      ask_what_is_left();
  }
  /// The kept server prints its objects and descriptors.
  void ask_what_is_left() {
    ledger_->tell = true;
    const auto end = clock_type::now() + 10s;
    while (ledger_->tell && clock_type::now() < end)
      std::this_thread::sleep_for(10ms);
    if (ledger_->tell)
      std::printf("the kept server does not answer\n");
  }

  /// Waits until the condition holds. If that takes too long, the run fails.
  template <class Condition>
  void wait(const char* what, std::size_t place, Condition&& holds) {
    const auto end = clock_type::now() + longest_pause;
    while (right_ && !holds()) {
      std::this_thread::sleep_for(10ms);
      look();
      if (right_ && clock_type::now() > end)
        fail(what, place);
    }
  }

  void summary() {
    constexpr const char* names[] = {"killed server", "kept server", "messages",
                                     "bytes",         "memory",      "leases"};
    for (std::size_t i = 0; i < processes; ++i) {
      const entry& e = ledger_->of[i];
      std::printf(
          "%-13s %8llu rounds, %6llu broken by faults, %9llu items, %12llu bytes compared, "
          "%6llu reports of delivery, %5llu KiB resident\n",
          names[i < servers ? i : servers - 1 + static_cast<std::size_t>(role_of(i))],
          static_cast<unsigned long long>(e.rounds), static_cast<unsigned long long>(e.broken),
          static_cast<unsigned long long>(e.items), static_cast<unsigned long long>(e.bytes),
          static_cast<unsigned long long>(e.reports),
          static_cast<unsigned long long>(e.resident >> 10));
    }
    if (rests_ != 0) {
      first_.print("after the warm-up");
      now_.print("at last");
    }
    for (const auto& [what, count] : happened_)
      std::printf("%6zu %s\n", count, what.c_str());
    std::printf("%s\n", right_ ? "all was right" : "NOT all was right");
  }

  const options& options_;
  const std::string address_ = std::getenv("ASIO_RDMA_ADDRESS"); // of the servers
  std::mt19937 random_;
  shared_ledger ledger_;
  pid_t pids_[processes] = {};
  clock_type::time_point stopped_until_[processes] = {};
  struct {
    clock_type::time_point at;
    std::uint64_t rounds = 0;
  } seen_[processes];
  std::map<std::string, std::size_t> happened_;
  const char* pending_[processes] = {}; // the faults that `settings` of the ledger ask for
  usage first_, now_;                   // at the first and the last rest
  std::size_t rests_ = 0;
  // Those of the software device, which the driver has loaded as well.
  const bool device_has_faults_ = ::dlsym(RTLD_DEFAULT, "soft_set") != nullptr;
  bool faults_ = false, right_ = true;
};

int play(const options& o) {
  if (o.role < 0) {
    if (std::getenv("ASIO_RDMA_ADDRESS") == nullptr)
      throw std::runtime_error("ASIO_RDMA_ADDRESS: the address of the device is needed");
    return driver(o).run() ? 0 : 1;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL); // it ends with its driver
  const char* const descriptor = std::getenv("CHAOS_LEDGER");
  if (descriptor == nullptr || std::size_t(o.role) >= processes) {
    std::fprintf(stderr, "--role is for the processes that the driver starts\n");
    return 2;
  }
  shared_ledger shared(std::atoi(descriptor));
  const auto place = static_cast<std::size_t>(o.role);
  return place < servers ? serve(shared, place) : use(shared, place, o.seed);
}

} // namespace
} // namespace chaos

int main(int argc, char** argv) {
  chaos::options o;
  const std::map<std::string, double> units{{"s", 1}, {"m", 60}, {"h", 3600}};
  CLI::App app(
      "Servers and clients to which faults happen; every byte and every count is compared");
  app.add_option("--for", o.seconds, "duration (1m)")
      ->transform(CLI::AsNumberWithUnit(units))
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "seed of the faults (1)");
  app.add_option("--clients-by", o.clients_by,
                 "a command that becomes another, for the clients: on-host 2")
      ->delimiter(' ');
  app.add_option("--role", o.role)->group(""); // of the driver's own processes
  CLI11_PARSE(app, argc, argv);
  try {
    return chaos::play(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "chaos: %s\n", e.what());
    return chaos::wrong;
  }
}
