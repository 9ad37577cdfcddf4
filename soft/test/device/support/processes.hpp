// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_PROCESSES_HPP
#define SOFT_TEST_DEVICE_PROCESSES_HPP

#include <cstddef>
#include <cstdint>
#include <rdma/rdma_cma.h>
#include <span>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace soft::test {

/// A process that runs another test case of this program, which is hidden.
class child {
public:
  using variables = std::vector<std::pair<std::string, std::string>>;
  child(const std::string& test_case, const variables& environment);
  /// Its exit status; waits for its end. `said`, if not nullptr, gets its standard error.
  int wait(std::string* said = nullptr);
  /// Stops the process: none of its threads runs any more.
  void stop();
  void kill();
  /// A stream socket, whose other end is the child's descriptor `parent_channel`.
  int channel() const noexcept { return channel_; }

private:
  pid_t pid_ = -1;
  int errors_ = -1;
  int channel_ = -1;
};
inline constexpr int parent_channel = 3;

/// Sends bytes to the process at the other end of a channel, and waits for as many.
void trade(int channel, std::span<const std::byte> own, std::span<std::byte> theirs);
template <class T>
T trade(int channel, const T& own) {
  T theirs{};
  trade(channel, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(&theirs, 1)));
  return theirs;
}
/// Waits until the other process calls it, too.
void meet(int channel);

/// A synchronous id of librdmacm, with its queue pair.
struct endpoint {
  rdma_cm_id* id = nullptr;
  endpoint() = default;
  explicit endpoint(rdma_cm_id* taken) : id(taken) {}
  ~endpoint();
  endpoint(const endpoint&) = delete;
  endpoint& operator=(const endpoint&) = delete;

  /// Makes the queue pair, with queues of its own.
  void make_queue_pair();
};

/// The queue pair of an id, whose queues are the id's and whose requests are all signaled.
void make_queue_pair(rdma_cm_id* id, ibv_qp_type type, std::uint32_t depth);

/// A synchronous id that has the address, and a free port.
rdma_cm_id* bound_to(const char* address = "127.0.0.1");
/// A listener of a free port of 127.0.0.1, and that port.
std::pair<rdma_cm_id*, std::string> listen();
/// An id with a queue pair that may connect to a port of 127.0.0.1.
void resolve(endpoint& e, const std::string& port);
int connect(endpoint& e);
int accept(endpoint& e);

} // namespace soft::test

#endif
