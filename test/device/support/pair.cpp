// SPDX-License-Identifier: BSL-1.0
#include "device/support/pair.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace test {

namespace {

// A limit for a test that hangs; no test waits for a time to pass.
constexpr std::chrono::seconds patience{30};

} // namespace

device open_device() {
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  return name != nullptr ? device::open(name) : device::open_first();
}

asio::ip::address device_address(const device& d) {
  if (const char* address = std::getenv("ASIO_RDMA_ADDRESS"))
    return asio::ip::make_address(address);
  return d.addresses().at(0);
}

bool is_kernels(const device& d) {
  return std::filesystem::exists("/sys/class/infiniband/" + d.name());
}

bool is_software(const device& d) {
  const std::filesystem::path path = std::string("/sys/class/infiniband/") + d.name();
  return is_kernels(d) &&
         std::filesystem::canonical(path).string().find("/virtual/") != std::string::npos;
}

int default_retries(const device& d) {
  return is_software(d) && !is_siw(d) ? 6 : queue_pair_options().retry_count;
}

bool is_siw(const device& d) { return d.type() == transport::iwarp && is_software(d); }

asio::ip::tcp::endpoint own_endpoint() {
  const char* address = std::getenv("ASIO_RDMA_ADDRESS");
  if (address == nullptr)
    throw std::runtime_error("ASIO_RDMA_ADDRESS: the address of the device is needed");
  return {asio::ip::make_address(address), 0};
}

void until(asio::io_context& io, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + patience;
  io.restart();
  while (!condition()) {
    if (io.stopped())
      throw std::runtime_error("the context has run out of work before the condition was true");
    if (io.run_one_until(end) == 0 && !io.stopped())
      throw std::runtime_error("timed out waiting for the condition");
  }
}

void until(std::initializer_list<asio::io_context*> contexts,
           const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    std::size_t ran = 0;
    for (asio::io_context* const io : contexts) {
      io->restart();
      ran += io->poll_one(); // poll() need not return while the device goes on
    }
    if (ran == 0)
      std::this_thread::yield();
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("timed out waiting for the condition");
  }
}

void drain(asio::io_context& io) {
  io.restart();
  io.run_for(patience);
  if (!io.stopped())
    throw std::runtime_error("the context still has work");
}

access most_rights(const device& d) {
  access result = all_rights;
  if (d.has_atomics())
    result = result | access::remote_atomic;
  if (d.has_memory_windows())
    result = result | access::window_bind;
  if (d.has_flush(placement::visible))
    result = result | access::flush_visible;
  return result;
}

memory::memory(const protection_domain& pd, std::size_t bytes, access rights)
    : bytes_(bytes), region(pd, bytes_.data(), bytes_.size(), rights) {}

pair::pair(const queue_pair_options& of_a, const queue_pair_options& of_b) {
  a.open(pd, of_a);
  b.open(pd, of_b);
  connect();
}

pair::pair(const completion_queue_options& queues, const queue_pair_options& options)
    : cq(io, dev, queues) {
  a.open(pd, cq, options);
  b.open(pd, cq, options);
  connect();
}

bool pair::carries(std::string_view text, std::size_t offset) {
  sent s;
  got r;
  ma.put(offset, text);
  std::memset(mb.data() + offset, 0, text.size());
  b.async_receive(mb.buffer(offset, text.size()), r.handler());
  a.async_send(ma.buffer(offset, text.size()), s.handler());
  until([&] { return s.done() && r.done(); });
  return s.succeeded() && r.succeeded() && r.value.bytes == text.size() &&
         mb.text(offset, text.size()) == text;
}

queue_pair_options impatient() {
  queue_pair_options options;
  options.timeout = 8; // 1 ms
  options.retry_count = 2;
  options.rnr_retry = 2;
  return options;
}

std::string describe(const error_code& ec) {
  return std::string(ec.category().name()) + ": " + ec.message();
}

} // namespace test
