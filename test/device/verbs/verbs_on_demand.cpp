// SPDX-License-Identifier: BSL-1.0
// Memory that is not pinned: the device faults its pages in.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace test::verbs_on_demand_tests {
namespace {

using query = int (*)(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex*,
                      std::size_t);
query asked; // the device's own function

int pages_datagrams_only(ibv_context* context, const ibv_query_device_ex_input* input,
                         ibv_device_attr_ex* attributes, std::size_t size) {
  const int e = asked(context, input, attributes, size);
  attributes->odp_caps.general_caps = IBV_ODP_SUPPORT;
  attributes->odp_caps.per_transport_caps = {0, 0, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV};
  return e;
}

/// Pages of the process that have not been touched.
class pages {
public:
  explicit pages(std::size_t count)
      : size_(count * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        data_(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  pages(const pages&) = delete;
  ~pages() { ::munmap(data_, size_); }

  char* data() const { return static_cast<char*>(data_); }
  std::size_t size() const { return size_; }
  /// Makes the kernel take the pages away: their contents are lost.
  void drop() const { REQUIRE(::madvise(data_, size_, MADV_DONTNEED) == 0); }

private:
  std::size_t size_;
  void* data_;
};

} // namespace

TEST_CASE("a device that pages for datagrams alone does not page for connections") {
  const std::string name = open_device().name();
  ibv_context* context = nullptr;
  ibv_device** const devices = ibv_get_device_list(nullptr);
  for (ibv_device** d = devices; *d != nullptr; ++d)
    if (name == ibv_get_device_name(*d))
      context = ibv_open_device(*d);
  ibv_free_device_list(devices);
  REQUIRE(context != nullptr);
  verbs_context* const verbs = verbs_get_ctx_op(context, query_device_ex);
  REQUIRE(verbs != nullptr);
  asked = std::exchange(verbs->query_device_ex, pages_datagrams_only);
  const device d(context, ownership::take);
  CHECK_FALSE(d.has_on_demand_paging());
}

TEST_CASE("memory registered on demand is sent, received, read and written") {
  pair p;
  if (!p.dev.has_on_demand_paging()) {
    const pages memory(1);
    error_code ec;
    const memory_region refused(p.pd, memory.data(), memory.size(), all_rights | access::on_demand,
                                ec);
    CHECK(ec == asio::error::operation_not_supported);
    return not_on_this_device("paging");
  }
  const pages pages_a(16), pages_b(16);
  const memory_region a(p.pd, pages_a.data(), pages_a.size(), all_rights | access::on_demand);
  const memory_region b(p.pd, pages_b.data(), pages_b.size(), all_rights | access::on_demand);
  for (int round = 0; round < 3; ++round) { // the device's translations must follow the kernel's
    const std::string text(pages_a.size() / 4, static_cast<char>('a' + round));
    std::memcpy(pages_a.data(), text.data(), text.size());
    sent s, written, read;
    got r;
    p.b.async_receive(b.buffer(0, text.size()), r.handler());
    p.a.async_send(a.buffer(0, text.size()), s.handler());
    p.a.async_write(a.buffer(0, text.size()), b.remote(2 * text.size(), text.size()),
                    written.handler());
    p.a.async_read(a.buffer(3 * text.size(), text.size()), b.remote(2 * text.size(), text.size()),
                   read.handler());
    p.until([&] { return s.done() && r.done() && written.done() && read.done(); });
    INFO(describe(s.ec) << ", " << describe(r.ec) << ", " << describe(written.ec) << ", "
                        << describe(read.ec));
    CHECK(r.value.bytes == text.size());
    CHECK(std::string(pages_b.data(), text.size()) == text);
    CHECK(std::string(pages_b.data() + 2 * text.size(), text.size()) == text);
    CHECK(std::string(pages_a.data() + 3 * text.size(), text.size()) == text);
    pages_a.drop();
    pages_b.drop();
  }
}

} // namespace test::verbs_on_demand_tests
