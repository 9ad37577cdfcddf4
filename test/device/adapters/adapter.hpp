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

/// The objects that this process has on the software device, by kind.
inline std::array<int, 7> device_objects() {
  soft_resources r{};
  soft_get_resources(&r);
  return {r.domains,     r.regions, r.windows, r.completion_queues, r.shared_receive_queues,
          r.queue_pairs, r.ids};
}

} // namespace test
