// SPDX-License-Identifier: BSL-1.0
// Rows of docs/adapters.md: what adapters have, and have not.
#include "check.hpp"
#include "memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <net/if.h>
#include <optional>
#include <sched.h>
#include <thread>

namespace trial {

namespace {

/// Makes a queue pair for reliable connections by verbs alone, with so much inline data. Returns
/// how much it then has; nothing if it is refused.
std::optional<std::uint32_t> made_by_verbs(const session& s, std::uint32_t inline_bytes = 0) {
  const auto destroy = [](ibv_cq* q) {
    ibv_destroy_cq(q);
  };
  const std::unique_ptr<ibv_cq, decltype(destroy)> queue(
      ibv_create_cq(s.dev.native_handle(), 4, nullptr, nullptr, 0), destroy);
  expect(queue != nullptr, std::string("ibv_create_cq: ") + std::strerror(errno));
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = queue.get();
  init.qp_type = IBV_QPT_RC;
  init.cap = {1, 1, 1, 1, inline_bytes};
  ibv_qp* const made = ibv_create_qp(s.pd.native_handle(), &init);
  if (made == nullptr)
    return {};
  ibv_destroy_qp(made);
  return std::min(inline_bytes, init.cap.max_inline_data);
}

awaitable<void> h7(session& s) {
  const bool reported = (s.dev.attributes().device_cap_flags &
                         (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
  co_await s.need(reported, "the device reports no windows");
  ibv_mw* const made = ibv_alloc_mw(s.pd.native_handle(), IBV_MW_TYPE_2);
  const bool given = made != nullptr;
  if (given)
    ibv_dealloc_mw(made);
  expect(given == s.dev.has_memory_windows(),
         given ? "windows can be allocated, and the library takes them for absent"
               : "windows are reported, and none can be allocated, which the library did not find");
  s.remark(given ? "windows are reported, and one can be allocated"
                 : "windows are reported, and none can be allocated");
  co_await s.meet();
}

awaitable<void> h8(session& s) {
  queue_pair_options options;
  options.max_send_sge = options.max_receive_sge = 16;
  pair_end e(s, options);
  const std::size_t to_send = e.qp.options().max_send_sge;
  const std::size_t to_receive = e.qp.options().max_receive_sge;
  s.remark(std::to_string(to_send) + " elements to send, " + std::to_string(to_receive) +
           " to receive, " + std::to_string(s.dev.attributes().max_sge) + " reported");
  co_await e.link();
  const auto parts = [&](std::size_t count) {
    std::vector<mutable_buffer> result;
    for (std::size_t i = 0; i < count; ++i) // the last one has the rest
      result.push_back(e.region.buffer(i * 10, i + 1 < count ? 10 : 1000 - i * 10));
    return result;
  };
  if (s.is_near()) {
    fill(e.memory.data(), 1000, 8);
    co_await s.hear();
    const auto all = parts(to_send);
    co_await e.qp.async_send(std::vector<const_buffer>(all.begin(), all.end()), use_awaitable);
  } else {
    const received r = co_await (e.qp.async_receive(parts(to_receive), use_awaitable) &&
                                 s.tell(std::string("ready")));
    expect(r.bytes == 1000, "a receive reported another size");
    compare(e.memory.data(), 1000, 8);
  }
  co_await s.meet();
}

awaitable<void> h9(session& s) {
  queue_pair_options options;
  options.max_inline = 1024;
  pair_end e(s, options);
  co_await e.link();
  std::uint32_t by_verbs = 0;
  for (std::uint32_t most = 512; most > 8 && by_verbs == 0; most /= 2)
    by_verbs = made_by_verbs(s, most).value_or(0);
  const std::uint32_t found = e.qp.options().max_inline;
  expect(found >= by_verbs, "verbs take " + std::to_string(by_verbs) +
                                " bytes of inline data, and the library finds " +
                                std::to_string(found));
  s.remark(std::to_string(found) + " bytes of inline data, by verbs at least " +
           std::to_string(by_verbs));
  // The near side's limit, one byte less, and one byte more, which is not inline.
  for (const int more : {-1, 0, 1}) {
    std::size_t bytes = 0;
    if (s.is_near()) {
      bytes = std::size_t(std::max(0, int(e.qp.options().max_inline) + more));
      co_await s.tell(std::to_string(bytes));
    } else {
      bytes = std::min(std::size_t(std::stoul(co_await s.hear())), e.memory.size());
    }
    co_await e.carry(bytes, unsigned(more + 1));
  }
}

awaitable<void> h13(session& s) {
  co_await s.need(is_roce(s.dev), "the device is not RoCE");
  const std::vector<gid_entry> all = s.dev.gids();
  expect(!all.empty(), "the device has no GIDs");
  const bool newer = std::any_of(all.begin(), all.end(), [](const gid_entry& g) {
    return g.type == gid_entry::kind::roce_v2;
  });
  expect(!newer || all.front().type == gid_entry::kind::roce_v2, "RoCE v1 is preferred to RoCE v2");
  for (const gid_entry& g : all) {
    char name[IF_NAMESIZE];
    expect(g.interface_index == 0 || ::if_indextoname(g.interface_index, name) != nullptr,
           "a GID's interface is not in this network namespace");
  }
  expect(!s.dev.addresses().empty(), "no GID has an IP address");
  const auto older = std::count_if(all.begin(), all.end(), [](const gid_entry& g) {
    return g.type == gid_entry::kind::roce_v1;
  });
  s.remark(std::to_string(all.size()) + " GIDs of this network namespace, of RoCE v1 " +
           std::to_string(older));
  co_await s.meet();
}

awaitable<void> h14(session& s) {
  if (s.dev.type() == transport::iwarp)
    throw absence("iWARP has no global routes");
  queue_pair qp(s.io, s.pd);
  co_await s.exchange(qp); // without rdma_cm, which sets a route itself
  const bool required = (s.dev.port(s.dev.first_port()).flags & IBV_QPF_GRH_REQUIRED) != 0;
  const auto route = route_of(qp);
  const bool global = route && route->is_global != 0;
  expect(!route || global || !required, "the port requires a global route, and there is none");
  s.remark(route ? "required, and set" : "required; the driver does not report whether it is set");
  std::vector<char> memory(64);
  const memory_region region(s.pd, memory.data(), memory.size());
  if (s.is_near()) {
    fill(memory.data(), 64, 1);
    co_await s.hear();
    co_await qp.async_send(region.buffer(), use_awaitable);
  } else {
    co_await (qp.async_receive(region.buffer(), use_awaitable) && s.tell(std::string("ready")));
    compare(memory.data(), 64, 1);
  }
  co_await s.meet();
  if (!required)
    throw absence(std::string("the port does not require it; a message was carried ") +
                  (!route   ? "by a route that the driver does not report"
                   : global ? "with one"
                            : "without one"));
}

awaitable<void> h15(session& s) {
  constexpr std::size_t carried = 16 << 20, otherwise = 1 << 20;
  const std::size_t most = s.dev.max_message_bytes();
  const std::uint32_t of_port = s.dev.port(s.dev.first_port()).max_msg_sz;
  expect(of_port == 0 || most <= of_port, "the port takes no more than " + std::to_string(of_port) +
                                              " bytes, the library " + std::to_string(most));
  pair_end e(s, {}, most <= carried ? most : otherwise);
  co_await e.link();
  if (s.is_near()) {
    // The library refuses the request before the device sees that there is less memory.
    const const_buffer too_long(e.memory.data(), most + 1, e.region.lkey());
    error_code ec;
    try {
      co_await e.qp.async_send(too_long, use_awaitable);
    } catch (const system_error& x) {
      ec = x.code();
    }
    expect(ec == asio::error::message_size, "a message above the limit is not refused");
  }
  std::size_t bytes = e.memory.size();
  co_await s.tell(std::to_string(bytes));
  bytes = std::min(bytes, std::size_t(std::stoull(co_await s.hear())));
  co_await e.carry(bytes, 1);
  s.remark("above " + std::to_string(most) + " bytes refused, " + std::to_string(bytes) +
           " bytes carried");
}

/// Adds to a word by the device and by the far processor at the same time. Returns the additions
/// that were lost.
awaitable<std::uint64_t> lost_additions(session& s, pair_end& e) {
  constexpr std::uint64_t of_device = 2000;
  if (s.is_near()) {
    co_await s.hear();
    for (std::uint64_t i = 0; i < of_device; ++i)
      co_await e.qp.async_fetch_add(e.there.first(8), 1, use_awaitable);
    co_await s.tell(std::string("added"));
    co_return std::stoull(co_await s.hear());
  }
  std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(e.memory.data()));
  const std::uint64_t before = word;
  std::uint64_t of_processor = 0;
  std::atomic<bool> ends = false;
  std::exception_ptr failed;
  std::thread adds([&] {
    for (; !ends; ++of_processor)
      ++word;
  });
  try {
    co_await s.tell(std::string("adds"));
    co_await s.hear();
  } catch (...) {
    failed = std::current_exception();
  }
  ends = true;
  adds.join();
  if (failed)
    std::rethrow_exception(failed);
  const std::uint64_t lost = before + of_device + of_processor - word;
  co_await s.tell(std::to_string(lost));
  co_return lost;
}

awaitable<void> h16(session& s) {
  pair_end e(s);
  std::memset(e.memory.data(), 0, 8);
  co_await e.link();
  if (s.is_near()) {
    error_code ec;
    try {
      co_await e.qp.async_fetch_add(e.there.first(8), 1, use_awaitable);
    } catch (const system_error& x) {
      ec = x.code();
    }
    if (!s.dev.has_atomics())
      expect(ec == asio::error::operation_not_supported,
             "an atomic operation of a device that has none is not refused");
    else if (ec)
      throw system_error(ec);
  }
  // The steps depend on both devices, which may differ.
  const ibv_atomic_cap cap = s.dev.attributes().atomic_cap;
  co_await s.tell(std::string(cap == IBV_ATOMIC_GLOB ? "all" : "device"));
  const std::string other = co_await s.hear();
  s.remark(cap == IBV_ATOMIC_NONE  ? "none"
           : cap == IBV_ATOMIC_HCA ? "atomic with operations of the device"
                                   : "said to be atomic with the processor, too");
  if (cap == IBV_ATOMIC_GLOB && other == "all") {
    const std::uint64_t lost = co_await lost_additions(s, e);
    expect(lost == 0, "said to be atomic with the processor, and additions to a word are lost: " +
                          std::to_string(lost));
    s.remark("atomic with the processor, too: no addition to a word was lost");
  }
  co_await e.carry(8, 1);
}

awaitable<void> h19(session& s) {
  queue_pair qp(s.io);
  error_code ec;
  qp.open(s.pd, {}, ec);
  if (ec && ec != asio::error::operation_not_supported)
    throw system_error(ec);
  const bool made = made_by_verbs(s).has_value();
  expect(made == !ec, made ? "verbs make reliable connections, and queue_pair::open refuses them"
                           : "queue_pair::open makes what verbs refuse");
  co_await s.need(!made, "the device has reliable connections");
  s.remark("none, and queue_pair::open says so");
}

/// Keeps the calling thread on its processor: the ranking depends on the NUMA node.
class on_one_processor {
public:
  on_one_processor() {
    cpu_set_t here;
    CPU_ZERO(&here);
    const int number = ::sched_getcpu();
    if (number < 0 || number >= CPU_SETSIZE ||
        ::sched_getaffinity(0, sizeof before_, &before_) != 0)
      return;
    CPU_SET(std::size_t(number), &here);
    kept_ = ::sched_setaffinity(0, sizeof here, &here) == 0;
  }
  on_one_processor(const on_one_processor&) = delete;
  ~on_one_processor() {
    if (kept_)
      ::sched_setaffinity(0, sizeof before_, &before_);
  }

private:
  cpu_set_t before_{};
  bool kept_ = false;
};

awaitable<void> h20(session& s) {
  std::optional<on_one_processor> both(std::in_place);
  const std::string ranking = device::explain();
  const std::string opened = device::open_first().name();
  both.reset();
  const std::string first = ranking.substr(0, ranking.find('\n'));
  expect(first.rfind("1. " + opened + " port ", 0) == 0,
         "device::open_first opens another device than the first one of device::explain");
  const auto ranked = std::count(ranking.begin(), ranking.end(), '\n');
  co_await s.meet();
  if (s.is_near() && ranked < 2) // the other machine may have another number
    throw absence("there is one device with one port");
  s.remark("the first of " + std::to_string(ranked) + " ports or devices");
}

} // namespace

std::span<const check> limit_checks() {
  static constexpr check checks[] = {
      {"h7", "h7", "memory windows are there if the library says so", h7},
      {"h8", "h8", "as many scatter/gather elements as a queue pair has", h8},
      {"h9", "h9", "as much inline data as the device takes", h9},
      {"h13", "h13", "GIDs of RoCE v2, of this network namespace", h13},
      {"h14", "h14", "a queue pair connected without rdma_cm has the route that it needs", h14},
      {"h15", "h15", "the longest message", h15},
      {"h16", "h16", "atomic operations, or their refusal", h16},
      {"h19", "h19", "reliable connections, or their refusal", h19},
      {"h20", "h20", "the device that is opened first is ranked first", h20},
  };
  return checks;
}

} // namespace trial
