// SPDX-License-Identifier: BSL-1.0
// Tests by the software device's personalities (soft/README.md): habits of adapters that rxe and
// siw do not have. Each test case names its row of docs/adapters.md by a tag. The tag [!shouldfail]
// means that the library does not yet do what the test demands; the case fails once the library
// does.
#pragma once

#include <array>
#include <asio_rdma_soft.h>
#include <stdexcept>
#include <string>

// The functions are there if the software device is.
#pragma weak soft_set
#pragma weak soft_get_vector
#pragma weak soft_get_faults
#pragma weak soft_get_resources
#pragma weak soft_get_lost_resources

namespace test {

/// The software device behaves as an adapter does as long as this object lives. Its limits are
/// those of a device that is opened afterwards.
class adapter {
public:
  explicit adapter(const std::string& settings) { become(settings.c_str()); }
  adapter(const adapter&) = delete;
  ~adapter() { soft_set(nullptr); }

  void become(const char* settings) {
    if (soft_set(settings) != 0)
      throw std::runtime_error("the software device refuses its settings");
  }
};

/// Numbers of objects on the software device, by kind.
using object_counts = std::array<int, 7>;

inline object_counts counts_of(const soft_resources& r) {
  return {r.domains,     r.regions, r.windows, r.completion_queues, r.shared_receive_queues,
          r.queue_pairs, r.ids};
}
/// Those that this process has.
inline object_counts device_objects() {
  soft_resources r{};
  soft_get_resources(&r);
  return counts_of(r);
}
/// Those that it has, and that a removed device has refused to destroy.
inline object_counts lost_objects() {
  soft_resources r{};
  soft_get_lost_resources(&r);
  return counts_of(r);
}
inline int lost_queue_pairs() {
  soft_resources r{};
  soft_get_lost_resources(&r);
  return r.queue_pairs;
}
/// Those that it has, and has not tried in vain to destroy.
inline object_counts objects_in_use() {
  object_counts all = device_objects();
  const object_counts lost = lost_objects();
  for (std::size_t i = 0; i != all.size(); ++i)
    all[i] -= lost[i];
  return all;
}

} // namespace test
