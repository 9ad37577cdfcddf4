// SPDX-License-Identifier: BSL-1.0
// Joins that are put to the program before anything is made for them (`accept_options::admit`).
#include "catch.hpp"
#include "device/global/global_support.hpp"

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace test::global_admission_tests {
namespace {

using data_view = std::span<const std::byte>;

/// A host whose function admits the nodes that say "secret", and throws for "trouble". Its pool has
/// no other user.
struct guarded {
  guarded() {
    accept_options how;
    how.admit = [this](data_view data, const endpoint& remote) {
      seen.push_back(text_of({data.begin(), data.end()}));
      CHECK(remote.address() == device_address(dev));
      CHECK(pool.statistics().bytes_in_use == bytes);
      if (seen.back() == "trouble")
        throw std::runtime_error("no such node");
      return seen.back() == "secret";
    };
    host.host(segment_bytes);
    bytes = pool.statistics().bytes_in_use;
    host.listen(endpoint(device_address(dev), 0), how);
    where = host.local_endpoint();
  }

  outcome<node_id> join(global_memory& who, const connect_options& how) {
    outcome<node_id> joined;
    who.async_join(where, how, joined.handler());
    test::until(io, [&] { return joined.done(); });
    return joined;
  }

  device dev = open_device();
  memory_pool pool{protection_domain(dev)}, of_guests{protection_domain(dev)};
  asio::io_context io{1};
  std::vector<std::string> seen;
  std::size_t bytes = 0;
  endpoint where;
  global_memory host{io, pool, host_id};
};

connect_options with(std::string_view data) { return connect_options().set_data(bytes_of(data)); }

} // namespace

TEST_CASE("a node joins only if the function admits it") {
  guarded g;
  global_memory guest(g.io, g.of_guests, guest_id);
  CHECK(g.join(guest, connect_options()).ec == error::rejected);
  CHECK(g.join(guest, with("guess")).ec == error::rejected);
  CHECK(g.join(guest, with("trouble")).ec == error::rejected);
  CHECK_FALSE(g.host.knows(guest_id));
  CHECK_FALSE(guest.knows(host_id));
  CHECK(g.pool.statistics().bytes_in_use == g.bytes);

  const outcome<node_id> joined = g.join(guest, with("secret"));
  CHECK(joined.succeeded());
  CHECK(joined.value == host_id);
  CHECK(g.host.knows(guest_id));
  CHECK(g.seen == std::vector<std::string>{"", "guess", "trouble", "secret"});
  outcome<std::uint64_t> read;
  guest.async_read(remote_ptr<std::uint64_t>(host_id, 0, 64), read.handler());
  until(g.io, [&] { return read.done(); });
  CHECK(read.succeeded());
  g.host.close(); // its function is not called from now on
  CHECK(g.join(guest, with("secret")).ec);
  CHECK(g.seen.size() == 4);
}

TEST_CASE("private data of a global memory's acceptance are an error") {
  guarded g;
  global_memory other(g.io, g.of_guests, guest_id);
  error_code ec;
  other.listen(endpoint(device_address(g.dev), 0), accept_options().set_data(private_data(1)), ec);
  CHECK(ec == asio::error::invalid_argument);
  CHECK(g.join(other, connect_options().set_data(private_data(300))).ec ==
        asio::error::message_size);
}

} // namespace test::global_admission_tests
