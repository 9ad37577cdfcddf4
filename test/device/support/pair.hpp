// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/device_events.hpp>
#include <asio_rdma/exchange.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/shared_receive_queue.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test {

using namespace asio_rdma;
using asio_rdma::access; // there is a function of that name too
namespace errc = boost::system::errc;

/// The device that the tests run on: ASIO_RDMA_DEVICE, or the first usable one.
device open_device();
/// The address by which the connection manager reaches the device.
asio::ip::address device_address(const device& d);
/// Whether the kernel has the device, and /sys describes it.
bool is_kernels(const device& d);
/// rxe or siw: a device of the kernel without hardware.
bool is_software(const device& d);
bool is_siw(const device& d);
/// The retries of `queue_pair_options`: rxe has fewer.
int default_retries(const device& d);

/// Runs the context until the condition holds; throws if that takes too long.
void until(asio::io_context& io, const std::function<bool()>& condition);
/// Runs several contexts by turns. None of them waits, as an event of another one would not end
/// that.
void until(std::initializer_list<asio::io_context*> contexts,
           const std::function<bool()>& condition);

/// Runs the context until it has no work; throws if that takes too long.
void drain(asio::io_context& io);

/// The result that a handler received, and the number of its calls. Outlives the operation.
template <class T>
struct outcome {
  int calls = 0;
  error_code ec;
  T value{};

  auto handler() {
    return [this](error_code e, T v) {
      ++calls;
      ec = e;
      value = std::move(v);
    };
  }
  bool done() const { return calls != 0; }
  bool succeeded() const { return calls == 1 && !ec; }
};

template <>
struct outcome<void> {
  int calls = 0;
  error_code ec;

  auto handler() {
    return [this](error_code e) {
      ++calls;
      ec = e;
    };
  }
  bool done() const { return calls != 0; }
  bool succeeded() const { return calls == 1 && !ec; }
};

using sent = outcome<std::size_t>;
using got = outcome<received>;

/// An endpoint through which the connection manager reaches the device, with any port.
asio::ip::tcp::endpoint own_endpoint();

/// Connects two open queue pairs of one device to each other by the connection manager in `io`.
/// Runs `io`, which must outlive the queue pairs.
template <class Executor>
void connect_by_manager(asio::io_context& io, basic_queue_pair<Executor>& a,
                        basic_queue_pair<Executor>& b) {
  acceptor listener(io, own_endpoint());
  connector initiator(io);
  outcome<connection_info> accepted, connected;
  listener.async_accept(b, accepted.handler());
  initiator.async_connect(a, listener.local_endpoint(), connected.handler());
  until(io, [&] { return accepted.done() && connected.done(); });
  if (accepted.ec || connected.ec)
    throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
}

/// Connects two open queue pairs, by hand if that is possible.
template <class Executor>
void connect(asio::io_context& io, basic_queue_pair<Executor>& a, basic_queue_pair<Executor>& b) {
  if (a.get_protection_domain().get_device().type() == transport::iwarp)
    return connect_by_manager(io, a, b);
  const queue_pair_address of_a = a.local_address(), of_b = b.local_address();
  a.connect(of_b);
  b.connect(of_a);
}

constexpr access all_rights = access::local_write | access::remote_write | access::remote_read;
/// `all_rights` and the further rights that the device offers: atomics, the binding of windows,
/// FLUSH.
access most_rights(const device& d);

/// Memory with its own registration.
class memory {
public:
  memory(const protection_domain& pd, std::size_t bytes, access rights);

  char* data() noexcept { return bytes_.data(); }
  std::size_t size() const noexcept { return bytes_.size(); }
  void put(std::size_t offset, std::string_view text) {
    std::memcpy(data() + offset, text.data(), text.size());
  }
  std::string text(std::size_t offset, std::size_t bytes) const {
    return {bytes_.data() + offset, bytes};
  }
  std::uint64_t word(std::size_t offset) const {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  void put_word(std::size_t offset, std::uint64_t value) {
    std::memcpy(data() + offset, &value, sizeof value);
  }
  mutable_buffer buffer(std::size_t offset = 0, std::size_t bytes = std::size_t(-1)) const {
    return region.buffer(offset, bytes);
  }
  remote_buffer remote(std::uint64_t offset = 0, std::uint64_t bytes = std::uint64_t(-1)) const {
    return region.remote(offset, bytes);
  }

private:
  std::vector<char> bytes_;

public:
  memory_region region;
};

/// Two connected queue pairs of one context, and memory for each side.
struct pair {
  static constexpr std::size_t memory_size = 64 * 1024;

  explicit pair(const queue_pair_options& options = {}) : pair(options, options) {}
  pair(const queue_pair_options& of_a, const queue_pair_options& of_b);
  /// Each side has completion queues with these options.
  explicit pair(const completion_queue_options& queues, const queue_pair_options& options = {});

  void connect() { test::connect(io, a, b); }
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  void drain() {
    if (when_drained)
      asio::post(io, std::exchange(when_drained, {}));
    test::drain(io);
  }
  /// Called at the beginning of the next drain().
  std::function<void()> when_drained;

  /// Receives at b, sends from a, and waits for both. True if the text arrived unchanged. The text
  /// is at `offset` in the memory of both sides.
  bool carries(std::string_view text, std::size_t offset = 0);
  /// Returns when the bytes of completed WRITEs of a are in b's memory. On iWARP a completed WRITE
  /// may not be placed yet; a message behind it is delivered after the placement (RFC 5040, 5.5).
  /// The last bytes of both memories are changed.
  bool placed() { return carries("after", memory_size - 5); }

  asio::io_context io{1};
  device dev = open_device();
  protection_domain pd{dev};
  memory ma{pd, memory_size, most_rights(dev)};
  memory mb{pd, memory_size, most_rights(dev)};
  completion_queue cq;
  queue_pair a{io}, b{io};
};

/// Options by which a vanished peer is noticed within a second.
queue_pair_options impatient();

/// The status of a failed completion, for messages of tests.
std::string describe(const error_code& ec);

} // namespace test
