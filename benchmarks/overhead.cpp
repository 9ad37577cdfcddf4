// SPDX-License-Identifier: BSL-1.0
//
// The instructions and allocations of an operation, on the null device under callgrind:
//   valgrind --tool=callgrind bench_overhead RESULTS.json
// Each case runs with two numbers of operations, and callgrind writes a profile of each, marked
// "CASE 0" and "CASE 1": the difference excludes the cost of setting up. `benchmarks/run overhead`
// does the arithmetic.
#include "null_device.hpp"

#include <asio_rdma/queue_pair.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <valgrind/callgrind.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {
std::uint64_t allocations = 0;
} // namespace

// The functions that operator new and std::aligned_alloc call; Asio recycles memory by the latter.
// glibc's own functions keep these names if they are replaced.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
}

namespace {

using namespace asio_rdma;

constexpr std::uint32_t window = 32;
constexpr std::uint32_t batch_size = 16;
constexpr std::uint64_t lengths[] = {10'000, 20'000};

struct memory {
  device d = device::open("null0");
  protection_domain pd{d};
  std::array<char, 64> bytes{};
  memory_region region{pd, bytes.data(), bytes.size()};
};

void check(bool good, const char* what) {
  if (good)
    return;
  std::cerr << "bench_overhead: " << what << " failed\n";
  std::exit(1);
}

// The reference: the cost of the device and of a hand-written loop.
void bare_sends(memory& m, std::uint64_t operations) {
  ibv_cq* cq = ibv_create_cq(m.d.native_handle(), 2 * window, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {window, 1, 1, 1, 64};
  ibv_qp* qp = ibv_create_qp(m.pd.native_handle(), &init);
  ibv_qp_attr attr{};
  for (const auto state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    attr.qp_state = state;
    check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "ibv_modify_qp");
  }
  std::uint64_t posted = 0, done = 0;
  std::array<ibv_wc, window> wc;
  while (done < operations) {
    for (; posted < operations && posted - done < window; ++posted) {
      ibv_sge sge{reinterpret_cast<std::uintptr_t>(m.bytes.data()), 64, m.region.lkey()};
      ibv_send_wr wr{}, *bad;
      wr.wr_id = posted;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
      check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
    }
    const int n = ibv_poll_cq(cq, static_cast<int>(wc.size()), wc.data());
    for (int i = 0; i < n; ++i)
      check(wc[static_cast<std::size_t>(i)].status == IBV_WC_SUCCESS, "a send");
    done += static_cast<std::uint64_t>(n);
  }
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
}

template <class Executor>
struct link {
  explicit link(memory& m, int hint = 1) : io(hint), qp(io.get_executor()) {
    queue_pair_options options;
    options.send_depth = window;
    qp.open(m.pd, completion_queue(io, m.d, {completion_mode::busy}), options);
    qp.connect(qp.local_address());
  }

  asio::io_context io;
  basic_queue_pair<Executor> qp;
};

template <class Executor>
struct sender {
  basic_queue_pair<Executor>& qp;
  const_buffer buffer;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    --left;
    qp.async_send(buffer, *this);
  }
  void operator()(const error_code& ec, std::size_t) const {
    check(!ec, "async_send");
    (*this)();
  }
};

// The concurrency hint of a context that several threads may run.
constexpr int default_hint = BOOST_ASIO_CONCURRENCY_HINT_DEFAULT;

template <class Executor, int Hint = 1>
void callback_sends(memory& m, std::uint64_t operations) {
  link<Executor> l(m, Hint);
  for (std::uint32_t i = 0; i < window; ++i)
    sender<Executor>{l.qp, m.region.buffer(), operations}();
  l.io.run();
}

asio::awaitable<void> send_many(queue_pair& qp, const_buffer buffer, std::uint64_t& left) {
  while (left != 0) {
    --left;
    co_await qp.async_send(buffer, asio::use_awaitable);
  }
}

void rethrow(const std::exception_ptr& e) {
  if (e)
    std::rethrow_exception(e);
}

void coroutine_sends(memory& m, std::uint64_t operations) {
  link<asio::any_io_executor> l(m);
  for (std::uint32_t i = 0; i < window; ++i)
    asio::co_spawn(l.io, send_many(l.qp, m.region.buffer(), operations), rethrow);
  l.io.run();
}

// In groups. Each group is posted as one chain when the group before it has completed.
void batched_sends(memory& m, std::uint64_t operations) {
  link<asio::io_context::executor_type> l(m);
  for (; operations != 0; operations -= batch_size) {
    decltype(l.qp)::batch group(l.qp);
    for (std::uint32_t i = 0; i < batch_size; ++i)
      l.qp.async_send(m.region.buffer(),
                      [](const error_code& ec, std::size_t) { check(!ec, "async_send"); });
    group.commit();
    l.io.restart();
    l.io.run();
  }
}

template <class Executor>
struct poster {
  const Executor& ex;
  std::uint64_t& left;

  void operator()() const {
    if (left == 0)
      return;
    --left;
    asio::post(ex, *this);
  }
};

template <class Executor, int Hint = 1>
void callback_posts(memory&, std::uint64_t operations) {
  asio::io_context io(Hint);
  const Executor ex = io.get_executor();
  for (std::uint32_t i = 0; i < window; ++i)
    poster<Executor>{ex, operations}();
  io.run();
}

// The cheapest way: to the coroutine's own executor.
asio::awaitable<void> post_many(std::uint64_t& left) {
  while (left != 0) {
    --left;
    co_await asio::post(asio::use_awaitable);
  }
}

void coroutine_posts(memory&, std::uint64_t operations) {
  asio::io_context io(1);
  for (std::uint32_t i = 0; i < window; ++i)
    asio::co_spawn(io, post_many(operations), rethrow);
  io.run();
}

struct test_case {
  std::string name;
  void (*run)(memory&, std::uint64_t);
};

const test_case cases[] = {
    {"bare send", bare_sends},
    {"io_context::executor_type send", callback_sends<asio::io_context::executor_type>},
    {"io_context::executor_type post", callback_posts<asio::io_context::executor_type>},
    {"default concurrency hint send",
     callback_sends<asio::io_context::executor_type, default_hint>},
    {"default concurrency hint post",
     callback_posts<asio::io_context::executor_type, default_hint>},
    {"any_io_executor send", callback_sends<asio::any_io_executor>},
    {"any_io_executor post", callback_posts<asio::any_io_executor>},
    {"use_awaitable send", coroutine_sends},
    {"use_awaitable post", coroutine_posts},
    {"batch send", batched_sends},
};

struct totals {
  std::uint64_t allocations, requests, calls;
};

totals measure(memory& m, const test_case& c, std::uint64_t length) {
  const null_device::counters& device = null_device::counts();
  const totals before{allocations, device.send_requests, device.post_send_calls};
  c.run(m, length);
  return {allocations - before.allocations, device.send_requests - before.requests,
          device.post_send_calls - before.calls};
}

} // namespace

int main(int argc, char* argv[]) {
  if (argc != 2) {
    std::cerr << "usage: valgrind --tool=callgrind bench_overhead RESULTS.json\n";
    return 2;
  }
  memory m;
  std::ofstream results(argv[1]);
  results << "{\"operations\": [" << lengths[0] << ", " << lengths[1] << "], \"cases\": {\n";
  for (const test_case& c : cases) {
    c.run(m, window);
    totals t[2];
    for (unsigned i = 0; i < 2; ++i) {
      const std::string label = c.name + ' ' + std::to_string(i);
      CALLGRIND_ZERO_STATS;
      t[i] = measure(m, c, lengths[i]);
      CALLGRIND_DUMP_STATS_AT(label.c_str());
    }
    results << "  \"" << c.name << "\": {\"allocations\": " << t[1].allocations - t[0].allocations
            << ", \"send_requests\": " << t[1].requests - t[0].requests
            << ", \"post_send_calls\": " << t[1].calls - t[0].calls << '}'
            << (&c == std::end(cases) - 1 ? "\n" : ",\n");
  }
  results << "}}\n";
  if (!results.flush()) {
    std::cerr << "bench_overhead: cannot write " << argv[1] << '\n';
    return 1;
  }
  return 0;
}
