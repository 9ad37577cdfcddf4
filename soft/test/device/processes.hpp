// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_PROCESSES_HPP
#define SOFT_TEST_DEVICE_PROCESSES_HPP

#include <rdma/rdma_cma.h>
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

private:
  pid_t pid_ = -1;
  int errors_ = -1;
};

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

/// A listener of a free port of 127.0.0.1, and that port.
std::pair<rdma_cm_id*, std::string> listen();
/// An id with a queue pair that may connect to a port of 127.0.0.1.
void resolve(endpoint& e, const std::string& port);
int connect(endpoint& e);
int accept(endpoint& e);

/// The next completion of a queue; polls until there is one.
ibv_wc completion(ibv_cq* q);

} // namespace soft::test

#endif
