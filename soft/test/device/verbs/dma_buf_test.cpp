// SPDX-License-Identifier: BSL-1.0
// Regions of a dma-buf, for which a memfd stands. The program's own mapping forbids every access
// while the device works, so an access of the processor to it ends the test.
#include "support/fixture.hpp"
#include "support/raw_connection.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

using namespace soft::test;

namespace {

constexpr std::size_t size = 1 << 16;
constexpr int all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                           IBV_ACCESS_RELAXED_ORDERING;

// A memfd, and addresses that forbid every access.
struct device_memory {
  device_memory() : fd(memfd_create("device memory", MFD_CLOEXEC)) {
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, size) == 0);
    address = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(address != MAP_FAILED);
  }
  ~device_memory() {
    munmap(address, size);
    close(fd);
  }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  std::uint64_t iova() const { return reinterpret_cast<std::uintptr_t>(address); }
  owned_mr reg(ibv_pd* pd, int access = all_rights, std::uint64_t offset = 0,
               std::size_t bytes = size) const {
    return owned_mr(ibv_reg_dmabuf_mr(pd, offset, bytes, iova() + offset, fd, access));
  }
  // The bytes as the owner of the memory has them.
  void set(std::uint64_t at, std::byte value) const {
    REQUIRE(pwrite(fd, &value, 1, static_cast<off_t>(at)) == 1);
  }
  std::byte get(std::uint64_t at) const {
    std::byte value{};
    REQUIRE(pread(fd, &value, 1, static_cast<off_t>(at)) == 1);
    return value;
  }

  int fd;
  void* address;
};

ibv_wc_status post(side& s, ibv_wr_opcode opcode, ibv_sge e, std::uint64_t to = 0,
                   std::uint32_t key = 0) {
  ibv_send_wr wr = side::request(1, opcode, e), *bad = nullptr;
  wr.wr.rdma = {to, key};
  REQUIRE(ibv_post_send(s.qp.get(), &wr, &bad) == 0);
  return s.completion().status;
}

} // namespace

TEST_CASE("A region of a dma-buf is read and written by its own device and by a peer") {
  connected_pair p;
  const device_memory m;
  const owned_mr of_a = m.reg(p.a.pd.get()), of_b = m.reg(p.b.pd.get());
  REQUIRE(of_a);
  REQUIRE(of_b);
  CHECK(of_a->addr == nullptr); // the offset, as with libibverbs
  CHECK(of_a->length == size);

  m.set(100, std::byte{1});
  CHECK(post(p.a, IBV_WR_RDMA_WRITE, {m.iova() + 100, 1, of_a->lkey}, m.iova() + 5000,
             of_b->rkey) == IBV_WC_SUCCESS);
  CHECK(m.get(5000) == std::byte{1});
  m.set(7000, std::byte{2});
  CHECK(post(p.a, IBV_WR_RDMA_READ, {m.iova() + 200, 1, of_a->lkey}, m.iova() + 7000, of_b->rkey) ==
        IBV_WC_SUCCESS);
  CHECK(m.get(200) == std::byte{2});

  ibv_sge to{m.iova() + 9000, 1, of_b->lkey};
  ibv_recv_wr receive{}, *bad = nullptr;
  receive.sg_list = &to;
  receive.num_sge = 1;
  REQUIRE(ibv_post_recv(p.b.qp.get(), &receive, &bad) == 0);
  CHECK(post(p.a, IBV_WR_SEND, {m.iova() + 200, 1, of_a->lkey}) == IBV_WC_SUCCESS);
  CHECK(p.b.completion().status == IBV_WC_SUCCESS);
  CHECK(m.get(9000) == std::byte{2});
}

TEST_CASE("A region of a dma-buf is used by connections between processes, too") {
  connected_to_raw c(4);
  const device_memory m;
  const owned_mr mr = m.reg(c.s.pd.get());
  REQUIRE(mr);
  m.set(3, std::byte{1});
  CHECK(post(c.s, IBV_WR_SEND, {m.iova() + 3, 1, mr->lkey}) == IBV_WC_SUCCESS);
  CHECK(c.peer->next().payload == std::vector{std::byte{1}});

  ibv_sge to{m.iova() + 4096, 8, mr->lkey};
  ibv_recv_wr receive{}, *bad = nullptr;
  receive.sg_list = &to;
  receive.num_sge = 1;
  REQUIRE(ibv_post_recv(c.s.qp.get(), &receive, &bad) == 0);
  const std::byte sent[] = {std::byte{2}};
  c.peer->send({.op = soft::iwarp::opcode::rdma_write,
                .length = 1,
                .stag = mr->rkey,
                .tagged_offset = m.iova() + 100},
               sent);
  c.peer->send({.op = soft::iwarp::opcode::send, .length = 1}, sent);
  CHECK(c.s.completion().status == IBV_WC_SUCCESS);
  CHECK(m.get(4096) == std::byte{2});
  CHECK(m.get(100) == std::byte{2});
}

TEST_CASE("An offset within a dma-buf is that of the region") {
  connected_pair p;
  const device_memory m;
  const owned_mr mr = m.reg(p.b.pd.get(), all_rights, 8192 + 256, 4096);
  REQUIRE(mr);
  p.a.memory[0] = std::byte{9};
  CHECK(post(p.a, IBV_WR_RDMA_WRITE, p.a.element(0, 1), m.iova() + 8192 + 256, mr->rkey) ==
        IBV_WC_SUCCESS);
  CHECK(m.get(8192 + 256) == std::byte{9});
  SECTION("a byte before it is out of bounds") {
    CHECK(post(p.a, IBV_WR_RDMA_WRITE, p.a.element(0, 1), m.iova() + 8192 + 255, mr->rkey) ==
          IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("a byte behind it is out of bounds") {
    CHECK(post(p.a, IBV_WR_RDMA_WRITE, p.a.element(0, 1), m.iova() + 8192 + 256 + 4096, mr->rkey) ==
          IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_CASE("The rights of a region of a dma-buf are those of its registration") {
  connected_pair p;
  const device_memory m;
  const owned_mr of_a = m.reg(p.a.pd.get(), 0), of_b = m.reg(p.b.pd.get(), IBV_ACCESS_REMOTE_READ);
  REQUIRE(of_a);
  REQUIRE(of_b);
  CHECK(post(p.a, IBV_WR_RDMA_READ, p.a.element(0, 1), m.iova(), of_b->rkey) == IBV_WC_SUCCESS);
  SECTION("not to be written by a peer") {
    CHECK(post(p.a, IBV_WR_RDMA_WRITE, p.a.element(0, 1), m.iova(), of_b->rkey) ==
          IBV_WC_REM_ACCESS_ERR);
  }
  SECTION("not to be written by its own device") {
    CHECK(post(p.a, IBV_WR_RDMA_READ, {m.iova(), 1, of_a->lkey}, m.iova(), of_b->rkey) ==
          IBV_WC_LOC_PROT_ERR);
  }
}

TEST_CASE("A dma-buf is not registered with rights, a place or a descriptor that it cannot have") {
  const auto context = open_soft();
  const side s(*context);
  const device_memory m;
  const auto error = [](const owned_mr& mr) {
    return mr ? 0 : errno;
  };
  CHECK(error(m.reg(s.pd.get(), all_rights)) == 0);
  // The kernel knows neither right for a dma-buf.
  CHECK(error(m.reg(s.pd.get(), all_rights | IBV_ACCESS_MW_BIND)) == EINVAL);
  CHECK(error(m.reg(s.pd.get(), all_rights | IBV_ACCESS_ON_DEMAND)) == EINVAL);
  CHECK(error(m.reg(s.pd.get(), IBV_ACCESS_REMOTE_WRITE)) == EINVAL); // without LOCAL_WRITE
  CHECK(error(m.reg(s.pd.get(), all_rights, 4096, size)) == EINVAL);
  CHECK(error(m.reg(s.pd.get(), all_rights, ~std::uint64_t(0), 2)) == EINVAL);
  CHECK(error(m.reg(s.pd.get(), all_rights, 0, 0)) == EINVAL);
  const auto reg = [&](int fd, std::uint64_t iova) {
    return error(owned_mr(ibv_reg_dmabuf_mr(s.pd.get(), 0, 4096, iova, fd, all_rights)));
  };
  CHECK(reg(m.fd, m.iova()) == 0);
  CHECK(reg(m.fd, 0) == 0);
  CHECK(reg(m.fd, m.iova() + 1) == EINVAL); // another offset in its page
  CHECK(reg(-1, m.iova()) == EBADF);
  const int file = open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC);
  if (file >= 0) { // 4096 bytes, and no memory
    CHECK(reg(file, m.iova()) == EINVAL);
    close(file);
  }
}

TEST_CASE("The poll of an adapter that copies small messages writes to the program's address") {
  const with_settings set("mlx5");
  const bool is_off = GENERATE(false, true);
  CAPTURE(is_off);
  if (is_off)
    setenv("MLX5_SCATTER_TO_CQE", "0", 1);
  connected_pair p;
  unsetenv("MLX5_SCATTER_TO_CQE");
  const device_memory m;
  const owned_mr mr = m.reg(p.b.pd.get());
  REQUIRE(mr);
  // The processor's access is no fault here.
  REQUIRE(mprotect(m.address, size, PROT_READ | PROT_WRITE) == 0);
  for (const std::uint32_t bytes : {32u, 33u}) {
    ibv_sge to{m.iova() + 4096 * bytes % size, bytes, mr->lkey};
    ibv_recv_wr receive{}, *bad = nullptr;
    receive.sg_list = &to;
    receive.num_sge = 1;
    REQUIRE(ibv_post_recv(p.b.qp.get(), &receive, &bad) == 0);
    p.a.memory[0] = std::byte{8};
    CHECK(post(p.a, IBV_WR_SEND, p.a.element(0, bytes)) == IBV_WC_SUCCESS);
    CHECK(p.b.completion().status == IBV_WC_SUCCESS);
    const std::uint64_t at = to.addr - m.iova();
    const bool by_poll = bytes == 32 && !is_off;
    CHECK(m.get(at) == (by_poll ? std::byte{} : std::byte{8}));
    CHECK(static_cast<const std::byte*>(m.address)[at] == (by_poll ? std::byte{8} : std::byte{}));
  }
}

TEST_CASE("Adapters without dma-bufs refuse them") {
  with_settings set("");
  const auto context = open_soft();
  const side s(*context);
  const device_memory m;
  for (const auto& [name, has] :
       {std::pair("plain", true), std::pair("mlx5", true), std::pair("irdma", true),
        std::pair("bnxt_re", true), std::pair("erdma", false), std::pair("efa", true)}) {
    INFO(name);
    set.replace(name);
    errno = 0;
    const owned_mr mr = m.reg(s.pd.get(), IBV_ACCESS_LOCAL_WRITE);
    CHECK((mr ? 0 : errno) == (has ? 0 : EOPNOTSUPP));
  }
}

TEST_CASE("The fault reg_mr makes the registration of a dma-buf fail, too") {
  const auto context = open_soft();
  const side s(*context);
  const device_memory m;
  with_settings set("fail=reg_mr:1:enomem");
  errno = 0;
  CHECK_FALSE(m.reg(s.pd.get()));
  CHECK(errno == ENOMEM);
  CHECK(m.reg(s.pd.get()));
}

TEST_CASE("The device's mapping of a dma-buf ends with its region") {
  const auto context = open_soft();
  const side s(*context);
  const device_memory m;
  // The mappings of the memfd in this process.
  const auto mappings = [] {
    int n = 0;
    struct closer {
      void operator()(std::FILE* f) const { std::fclose(f); }
    };
    const std::unique_ptr<std::FILE, closer> maps(std::fopen("/proc/self/maps", "r"));
    REQUIRE(maps);
    for (char line[512]; std::fgets(line, sizeof(line), maps.get()) != nullptr;)
      n += std::string_view(line).find("/memfd:device memory") != std::string_view::npos;
    return n;
  };
  {
    const owned_mr mr = m.reg(s.pd.get());
    REQUIRE(mr);
    CHECK(mappings() == 1);
  }
  CHECK(mappings() == 0);
  CHECK_FALSE(m.reg(s.pd.get(), all_rights, 4096, size));
  CHECK(mappings() == 0);
}
