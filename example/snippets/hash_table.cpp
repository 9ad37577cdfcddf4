// SPDX-License-Identifier: BSL-1.0
// A hash table that its owner writes and that other nodes read without the owner's program: each
// look-up is one RDMA READ or a few. Owner and reader are in one process here.
#include <asio_rdma/single_writer.hpp>
#include <boost/asio.hpp>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace asio = boost::asio;
using asio::deferred, asio::ip::tcp;
using asio_rdma::global_memory, asio_rdma::remote_ptr, asio_rdma::root_of;

namespace {

constexpr std::size_t slots = 256;

struct entry {
  char key[24];
  char value[40];
};
using slot = asio_rdma::single_writer<entry>;

// Owner and reader have the same hash function, as they run the same program.
std::size_t slot_of(std::string_view key) { return std::hash<std::string_view>()(key) % slots; }

template <std::size_t N>
void put(char (&to)[N], std::string_view text) {
  if (text.empty() || text.size() >= N)
    throw std::length_error(std::string(text));
  std::memcpy(to, text.data(), text.size());
}

/// The owner's side: it inserts and replaces.
class table {
public:
  explicit table(slot* first) : slots_(first) {}

  void insert(std::string_view key, std::string_view value) {
    entry e{};
    put(e.key, key);
    put(e.value, value);
    for (std::size_t i = 0; i < slots; ++i) {
      slot& s = slots_[(slot_of(key) + i) % slots];
      const entry now = s.try_load()->value; // only this side stores, so the value is complete
      if (now.key[0] != '\0' && now.key != key)
        continue;
      s.store(e);
      return;
    }
    throw std::length_error("the table is full");
  }

private:
  slot* slots_;
};

// [look-up]
asio::awaitable<std::optional<std::string>> look_up(global_memory& memory, remote_ptr<slot> table,
                                                    std::string_view key) {
  for (std::size_t i = 0; i < slots; ++i) {
    const auto at = table + (slot_of(key) + i) % slots;
    const auto found = co_await async_load(memory, at, deferred);
    if (found.value.key == key)
      co_return found.value.value;
    if (found.value.key[0] == '\0')
      break;
  }
  co_return std::nullopt;
}
// [look-up]

asio::awaitable<void> reader(tcp::endpoint where, asio_rdma::memory_pool pool) {
  global_memory memory(co_await asio::this_coro::executor, pool, 2);
  const auto owner = co_await memory.async_join(where, deferred);
  const auto root = co_await memory.async_read(root_of(owner), deferred);
  for (const char* key : {"red", "green", "mauve"}) {
    const auto value = co_await look_up(memory, root.cast<slot>(), key);
    std::cout << key << ": " << value.value_or("unknown") << std::endl;
  }
}

asio::awaitable<void> owner(asio_rdma::memory_pool pool) {
  global_memory memory(co_await asio::this_coro::executor, pool, 1);
  memory.host(1 << 20);
  const auto first = co_await memory.async_allocate<slot>(1, 0, slots, deferred);
  memory.local(root_of(1))->store(first);
  table colours(memory.local(first));
  colours.insert("red", "#f00");
  colours.insert("green", "#0f0");
  colours.insert("green", "#080");
  memory.listen(tcp::endpoint(tcp::v4(), 0));
  const tcp::endpoint where(asio::ip::address_v4::loopback(), memory.local_endpoint().port());
  co_await reader(where, pool);
}

} // namespace

int main(int argc, char*[]) try {
  if (argc > 1)
    throw std::invalid_argument("takes no arguments");
  const char* name = std::getenv("ASIO_RDMA_DEVICE");
  const auto device = name ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(device)};
  asio::io_context io(1);
  auto done = co_spawn(io, owner(pool), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "hash_table: " << e.what() << std::endl;
  return 2;
}
