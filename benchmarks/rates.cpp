// SPDX-License-Identifier: BSL-1.0
//
// How many SENDs of 64 bytes a process carries out in a second: with one thread or two, and with
// many connections in one context, by the library and by verbs. Prints JSON: the millions a second
// of each run. The kinds run in turns, so their rates can be compared.
#include <asio_rdma/asio_rdma.hpp>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

namespace asio = boost::asio;
using namespace asio_rdma;

void check(const error_code& ec, const char* what) {
  if (ec)
    throw std::system_error(ec, what);
}

/// Two connected queue pairs. The first one sends without end, the other one receives.
class flow {
public:
  static constexpr std::size_t bytes = 64;

  flow(asio::any_io_executor executor, std::uint32_t window)
      : window_(window), from_(executor), to_(executor) {}

  void open(const protection_domain& pd, const completion_queue& queue) {
    queue_pair_options o;
    o.send_depth = window_;
    o.receive_depth = 2 * window_; // so that the peer finds one
    from_.open(pd, queue, o);
    to_.open(pd, queue, o);
  }
  queue_pair& from() { return from_; }
  queue_pair& to() { return to_; }

  void begin(const const_buffer& source, const mutable_buffer& sink) {
    source_ = source;
    sink_ = sink;
    for (std::uint32_t i = 0; i < 2 * window_; ++i)
      receive();
    for (std::uint32_t i = 0; i < window_; ++i)
      send();
  }
  std::uint64_t sent() const { return sent_; }

  /// The same by verbs. The library does not poll the completion queue then.
  void begin_by_verbs(const ibv_sge& source, const ibv_sge& sink) {
    source_sge_ = source;
    sink_sge_ = sink;
    for (std::uint32_t i = 0; i < 2 * window_; ++i)
      post_receive();
    for (std::uint32_t i = 0; i < window_; ++i)
      post_send();
  }
  static void complete_by_verbs(const ibv_wc& done) {
    if (done.status != IBV_WC_SUCCESS)
      throw std::runtime_error("an operation of verbs failed");
    flow& self = *reinterpret_cast<flow*>(done.wr_id);
    if ((done.opcode & IBV_WC_RECV) != 0)
      return self.post_receive();
    ++self.sent_;
    self.post_send();
  }

private:
  void post_send() {
    ibv_send_wr r{}, *bad;
    r.wr_id = reinterpret_cast<std::uintptr_t>(this);
    r.sg_list = &source_sge_;
    r.num_sge = 1;
    r.opcode = IBV_WR_SEND;
    r.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    if (ibv_post_send(from_.native_handle(), &r, &bad) != 0)
      throw std::runtime_error("post_send");
  }
  void post_receive() {
    ibv_recv_wr r{}, *bad;
    r.wr_id = reinterpret_cast<std::uintptr_t>(this);
    r.sg_list = &sink_sge_;
    r.num_sge = 1;
    if (ibv_post_recv(to_.native_handle(), &r, &bad) != 0)
      throw std::runtime_error("post_recv");
  }
  void send() {
    from_.async_send(source_, [this](const error_code& ec, std::size_t) {
      check(ec, "send");
      ++sent_;
      send();
    });
  }
  void receive() {
    to_.async_receive(sink_, [this](const error_code& ec, const received&) {
      check(ec, "receive");
      receive();
    });
  }

  std::uint32_t window_;
  queue_pair from_, to_;
  const_buffer source_;
  mutable_buffer sink_;
  ibv_sge source_sge_{}, sink_sge_{};
  std::uint64_t sent_ = 0; // changed by the handlers of one strand
};

enum class way { library, verbs };

/// A context with its flows, and the threads that run it.
class site {
public:
  /// With several threads, each flow has a strand.
  site(const device& d, way how, unsigned threads, std::size_t flows, std::uint32_t window)
      : threads_(threads),
        io_(static_cast<int>(threads)),
        how_(how),
        pd_(d),
        queue_(io_, d,
               {how == way::verbs ? completion_mode::manual : completion_mode::busy,
                std::uint32_t(8 * flows * window + 64)}),
        sends_(pd_, memory_, sizeof memory_ / 2, access::local_read),
        receives_(pd_, memory_ + sizeof memory_ / 2, sizeof memory_ / 2, access::local_write) {
    for (std::size_t i = 0; i < flows; ++i) {
      asio::any_io_executor executor = io_.get_executor();
      if (threads > 1)
        executor = asio::make_strand(io_);
      flows_.push_back(std::make_unique<flow>(executor, window));
      flow& f = *flows_.back();
      f.open(pd_, queue_);
      // Without rdma_cm, whose ids have descriptors: a process may have fewer than connections.
      f.from().connect(f.to().local_address());
      f.to().connect(f.from().local_address());
    }
    char* const sink = memory_ + sizeof memory_ / 2;
    const auto address = [](char* p) {
      return reinterpret_cast<std::uintptr_t>(p);
    };
    for (const auto& f : flows_)
      if (how == way::verbs)
        f->begin_by_verbs({address(memory_), flow::bytes, sends_.lkey()},
                          {address(sink), flow::bytes, receives_.lkey()});
      else
        f->begin({memory_, flow::bytes, sends_.lkey()}, {sink, flow::bytes, receives_.lkey()});
  }

  void start() {
    io_.restart();
    stopped_ = false;
    for (unsigned i = 0; i < threads_; ++i)
      running_.emplace_back([this] { how_ == way::verbs ? poll() : void(io_.run()); });
  }
  void stop() {
    io_.stop();
    stopped_ = true;
  }
  void join() {
    for (std::thread& t : running_)
      t.join();
    running_.clear();
  }
  /// While no thread runs.
  std::uint64_t sent() const {
    std::uint64_t sum = 0;
    for (const auto& f : flows_)
      sum += f->sent();
    return sum;
  }

private:
  void poll() {
    std::array<ibv_wc, 32> done;
    while (!stopped_.load(std::memory_order_relaxed)) {
      const int n = ibv_poll_cq(queue_.native_handle(), int(done.size()), done.data());
      for (int i = 0; i < n; ++i)
        flow::complete_by_verbs(done[static_cast<std::size_t>(i)]);
    }
  }

  unsigned threads_;
  asio::io_context io_;
  way how_;
  std::atomic<bool> stopped_{false};
  protection_domain pd_;
  alignas(64) char memory_[2 * flow::bytes] = {};
  completion_queue queue_;
  memory_region sends_, receives_;
  std::vector<std::unique_ptr<flow>> flows_;
  std::vector<std::thread> running_;
};

/// Contexts that run at a time.
struct kind {
  std::string name;
  std::deque<site> sites;
  std::vector<double> rates;

  std::uint64_t sent() const {
    std::uint64_t sum = 0;
    for (const site& s : sites)
      sum += s.sent();
    return sum;
  }
  void run(double seconds) {
    const std::uint64_t before = sent();
    const auto began = std::chrono::steady_clock::now();
    for (site& s : sites)
      s.start();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    for (site& s : sites)
      s.stop();
    for (site& s : sites)
      s.join();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - began;
    rates.push_back(1e-6 * static_cast<double>(sent() - before) / time.count());
  }
};

void measure(unsigned rounds, double seconds, std::size_t connections) {
  const device d = device::open_first();
  constexpr std::uint32_t window = 32;
  // Never destroyed, not even after an exception: the operations have no end, and the library would
  // take the completions of those that were posted by verbs for its own.
  auto& kinds = *new std::deque<kind>;
  const auto add = [&](std::string name, std::size_t contexts, unsigned threads, std::size_t flows,
                       way how = way::library) {
    kind& k = kinds.emplace_back();
    k.name = std::move(name);
    const auto each = static_cast<std::uint32_t>(std::max<std::size_t>(1, window / flows));
    for (std::size_t i = 0; i < contexts; ++i)
      k.sites.emplace_back(d, how, threads, flows, each);
  };
  add("one thread", 1, 1, 1);
  add("two contexts", 2, 1, 1);
  add("one thread by verbs", 1, 1, 1, way::verbs);
  add("two threads by verbs", 2, 1, 1, way::verbs);
  add("one thread, two connections", 1, 1, 2);
  add("two threads on one context", 1, 2, 2);
  for (std::size_t n = 10; n <= connections; n *= 10) {
    add(std::to_string(n) + " connections", 1, 1, n);
    add(std::to_string(n) + " connections by verbs", 1, 1, n, way::verbs);
  }
  for (unsigned i = 0; i < rounds; ++i)
    for (kind& k : kinds)
      k.run(seconds);
  std::cout << '{';
  for (const kind& k : kinds) {
    std::cout << (&k == &kinds.front() ? "" : ", ") << '"' << k.name << "\": [";
    for (std::size_t i = 0; i < k.rates.size(); ++i)
      std::cout << (i == 0 ? "" : ", ") << k.rates[i];
    std::cout << ']';
  }
  std::cout << '}' << std::endl;
}

} // namespace

int main(int argc, char* argv[]) {
  CLI::App app("Measures how many SENDs of 64 bytes a process carries out, in millions a second");
  unsigned rounds = 5;
  double seconds = 0.2;
  std::size_t connections = 10'000;
  app.add_option("--rounds", rounds, "number of runs of each kind")->check(CLI::Range(1u, 1000u));
  app.add_option("--seconds", seconds, "duration of a run")->check(CLI::Range(0.01, 60.0));
  app.add_option("--connections", connections, "the most connections in one context")
      ->check(CLI::Range(1u, 100'000u));
  CLI11_PARSE(app, argc, argv);
  int status = 0;
  try {
    measure(rounds, seconds, connections);
  } catch (const std::exception& e) {
    std::cerr << "bench_rates: " << e.what() << std::endl;
    status = 1;
  }
  std::_Exit(status);
}
