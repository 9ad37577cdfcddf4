// SPDX-License-Identifier: BSL-1.0
//
// A library to preload before the software device: its one device appears as two equal ones, soft0
// and soft1. Their order, which decides between equal devices, is another one in each process:
// soft1 is first in the first process that lists the devices, soft0 in the next one, and so on. So
// the ranking changes from process to process, as on a machine whose adapters are near other
// processors. The file TWO_DEVICES counts the processes. The file QUEUES gets the completion vector
// of each completion queue, a line for each.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace {

template <class Function>
Function* next(const char* name) {
  void* const found = ::dlvsym(RTLD_NEXT, name, "IBVERBS_1.1");
  if (found == nullptr) {
    std::fprintf(stderr, "two_devices: %s is not in a shared libibverbs\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

std::array<ibv_device, 2> both;
// An opened device has the software device's own `ibv_device`, which therefore has the name of the
// device that was opened last.
std::atomic<const char*> last_opened{"soft0"};

ibv_device* software_device() {
  static ibv_device* const found = [] {
    int count = 0;
    ibv_device** const all = next<ibv_device**(int*)>("ibv_get_device_list")(&count);
    ibv_device* const first = count > 0 ? all[0] : nullptr;
    if (first == nullptr || std::strcmp(first->name, "soft0") != 0) {
      std::fprintf(stderr, "two_devices: there is no soft0\n");
      std::abort();
    }
    for (std::size_t i = 0; i < both.size(); ++i) {
      both.at(i) = *first;
      std::snprintf(both.at(i).name, sizeof first->name, "soft%zu", i);
    }
    return first;
  }();
  return found;
}

/// Appends a text to the file that a variable of the environment names. Returns its size.
off_t append(const char* variable, std::string_view text) {
  const int file = ::open(std::getenv(variable), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct stat now {};
  if (file < 0 || ::write(file, text.data(), text.size()) != ssize_t(text.size()) ||
      ::fstat(file, &now) != 0) {
    std::fprintf(stderr, "two_devices: %s: %s\n", variable, std::strerror(errno));
    std::abort();
  }
  ::close(file);
  return now.st_size;
}

bool is_soft1_first() {
  static const bool result = append("TWO_DEVICES", ".") % 2 == 1;
  return result;
}

bool is_copy(const ibv_device* d) { return d == &both[0] || d == &both[1]; }

} // namespace

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  software_device();
  auto** const list = static_cast<ibv_device**>(std::calloc(3, sizeof(ibv_device*)));
  list[0] = &both.at(is_soft1_first() ? 1 : 0);
  list[1] = &both.at(is_soft1_first() ? 0 : 1);
  if (count != nullptr)
    *count = 2;
  return list;
}

void ibv_free_device_list(ibv_device** list) { std::free(list); }

const char* ibv_get_device_name(ibv_device* d) { return is_copy(d) ? d->name : last_opened.load(); }

__be64 ibv_get_device_guid(ibv_device* d) {
  return next<__be64(ibv_device*)>("ibv_get_device_guid")(is_copy(d) ? software_device() : d);
}

ibv_context* ibv_open_device(ibv_device* d) {
  if (is_copy(d))
    last_opened = d->name;
  return next<ibv_context*(ibv_device*)>("ibv_open_device")(is_copy(d) ? software_device() : d);
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                      int vector) {
  append("QUEUES", std::to_string(vector) + '\n');
  return next<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)>("ibv_create_cq")(
      context, entries, user, channel, vector);
}
}
