// SPDX-License-Identifier: BSL-1.0
// lock_table: two nodes, each with a table of accounts and a lock for each account, and coroutines
// that pay into accounts: into their own node's by the CPU, into the other node's by the device.
// The number of payments depends on the share of local ones. Both nodes are in this process, each
// with a context and a thread.
#include "../one_line.hpp"
#include "../refuse_nan.hpp"

#include <CLI/CLI.hpp>
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;
using asio_rdma::global_memory, asio_rdma::remote_ptr;

using clock_type = std::chrono::steady_clock;

constexpr int failed = 2;

struct account {
  asio_rdma::alock_words lock;
  asio_rdma::shared_word<std::uint64_t> balance;
};

struct wishes {
  std::optional<std::string> device;
  std::uint64_t accounts = 100;
  int coroutines = 4;
  double seconds = 1;
  std::vector<int> shares{50, 75, 90, 95, 100};
};

/// A node with its table, and the thread that runs its context.
class node {
public:
  node(const asio_rdma::memory_pool& pool, asio_rdma::node_id id, std::uint64_t accounts)
      : memory(io, pool, id) {
    memory.host(2 * accounts * sizeof(account) + (1 << 20)); // a block takes more than is asked for
    memory.listen(tcp::endpoint(tcp::v4(), 0));
    auto table = memory.async_allocate<account>(id, 0, accounts, asio::use_future);
    io.poll(); // the node's own memory is ready at once
    own = table.get();
    thread_ = std::thread([this] { io.run(); });
  }
  ~node() {
    asio::post(io, [this] { memory.close(); });
    thread_.join();
  }

  asio::io_context io{1};
  global_memory memory;
  remote_ptr<account> own, other;

private:
  std::thread thread_;
};

// [pay]
asio::awaitable<void> pay(global_memory& memory, remote_ptr<account> to) {
  asio_rdma::alock lock(memory, to.member<&account::lock>());
  const auto balance = to.member<&account::balance>();
  auto held = co_await lock.async_lock(deferred);
  if (account* const here = memory.local(to)) {
    here->balance.store(here->balance.load() + 1);
  } else {
    const auto before = co_await memory.async_read(balance, deferred);
    co_await memory.async_write(balance, before + 1, deferred);
  }
} // `held` gives the lock back
// [pay]

/// Pays until `stop`, and returns the number of payments.
asio::awaitable<std::uint64_t> payer(node& n, const wishes& w, int share, unsigned seed,
                                     const std::atomic<bool>& stop) {
  std::minstd_rand random(seed);
  std::uint64_t payments = 0;
  for (; !stop; ++payments) {
    const auto table = random() % 100 < static_cast<unsigned>(share) ? n.own : n.other;
    co_await pay(n.memory, table + random() % w.accounts);
    co_await asio::post(n.io, deferred); // a local payment has not suspended
  }
  co_return payments;
}

void measure(std::array<node, 2>& nodes, const wishes& w, int share, std::uint64_t& paid) {
  std::atomic<bool> stop{false};
  std::vector<std::future<std::uint64_t>> payers;
  const auto begin = clock_type::now();
  for (node& n : nodes)
    for (int i = 0; i < w.coroutines; ++i)
      payers.push_back(
          co_spawn(n.io, payer(n, w, share, unsigned(payers.size() + 1), stop), asio::use_future));
  asio::io_context io;
  asio::steady_timer(io, std::chrono::duration_cast<clock_type::duration>(
                             std::chrono::duration<double>(w.seconds)))
      .wait();
  stop = true;
  for (auto& p : payers)
    p.wait(); // waits for every payer, even if one has failed
  std::uint64_t payments = 0;
  for (auto& p : payers)
    payments += p.get();
  const double elapsed = std::chrono::duration<double>(clock_type::now() - begin).count();
  std::printf("%3d %% local %10.0f payments/s\n", share, double(payments) / elapsed);
  std::fflush(stdout);
  paid += payments;
}

void run(const wishes& w) {
  const auto device =
      w.device ? asio_rdma::device::open(*w.device) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  std::array<node, 2> nodes{{{pool, 1, w.accounts}, {pool, 2, w.accounts}}};
  const tcp::endpoint to(asio::ip::address_v4::loopback(), nodes[1].memory.local_endpoint().port());
  nodes[0].memory.async_join(to, asio::use_future).get();
  nodes[0].other = nodes[1].own;
  nodes[1].other = nodes[0].own;
  std::printf("two tables of %llu accounts on %s, %d coroutines at each\n",
              static_cast<unsigned long long>(w.accounts), device.name().c_str(), w.coroutines);
  std::uint64_t paid = 0, found = 0;
  for (const int share : w.shares)
    measure(nodes, w, share, paid);
  for (const node& n : nodes)
    for (std::uint64_t i = 0; i < w.accounts; ++i)
      found += n.memory.local(n.own + i)->balance.load();
  if (found != paid)
    throw std::runtime_error("the sum of the accounts differs from the payments");
}

int complain(const std::string& line) {
  std::cerr << "lock_table: " << one_line(line) << std::endl;
  return failed;
}

} // namespace

int main(int argc, char* argv[]) {
  wishes w;
  if (const char* name = std::getenv("ASIO_RDMA_DEVICE"))
    w.device = name;
  CLI::App app("Payments into tables of accounts with a lock each, of two nodes");
  app.add_option("--device", w.device,
                 "RDMA device, such as rxe0 (default: $ASIO_RDMA_DEVICE, or the first)");
  app.add_option("--accounts", w.accounts, "Accounts of each node (default 100)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--coroutines", w.coroutines, "Coroutines of each node (default 4)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", w.seconds, "Duration of each share (default 1)")
      ->check(CLI::Range(0.001, 86400.0))
      ->check(refuse_nan);
  app.add_option("--local", w.shares, "Shares of local payments, in % (default 50 75 90 95 100)")
      ->check(CLI::Range(0, 100));
  try {
    app.parse(argc, argv);
    run(w);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& e) {
    return complain(std::string(e.what()) + " (--help tells more)");
  } catch (const boost::system::system_error& e) {
    return complain((w.device ? "'" + *w.device + "': " : "") + e.code().message());
  } catch (const std::exception& e) {
    return complain(e.what());
  }
}
