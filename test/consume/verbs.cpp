// SPDX-License-Identifier: BSL-1.0
// A test by verbs alone, which is linked with the software device.
#include <asio_rdma_soft.h>

#include <infiniband/verbs.h>

#include <cstring>
#include <iostream>

int main() {
  ibv_context* context = nullptr;
  if (ibv_device** const list = ibv_get_device_list(nullptr)) {
    for (ibv_device** d = list; *d != nullptr && context == nullptr; ++d)
      if (std::strcmp(ibv_get_device_name(*d), "soft0") == 0)
        context = ibv_open_device(*d);
    ibv_free_device_list(list);
  }
  if (context == nullptr) {
    std::cerr << "no soft0\n";
    return 1;
  }
  ibv_pd* const domain = ibv_alloc_pd(context);
  soft_resources used{};
  soft_get_resources(&used);
  std::cout << "soft0 by verbs, " << used.domains << " protection domain\n";
  const bool freed = domain != nullptr && ibv_dealloc_pd(domain) == 0;
  return freed && ibv_close_device(context) == 0 && used.domains == 1 ? 0 : 1;
}
