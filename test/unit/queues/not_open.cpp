// SPDX-License-Identifier: BSL-1.0
//
// Objects that are made on a device that is not open.
#include <catch.hpp>

#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/device_events.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/shared_receives.hpp>

#include <boost/asio/io_context.hpp>

using namespace asio_rdma;

namespace {

/// The error that `f` throws.
template <class F>
error_code thrown_by(F&& f) {
  try {
    f();
  } catch (const system_error& e) {
    return e.code();
  }
  return {};
}

const error_code not_open = asio::error::bad_descriptor;

} // namespace

TEST_CASE("nothing is made on a device that is not open") {
  asio::io_context io(1);
  error_code ec;
  const device none = device::open("a device that does not exist", ec);
  REQUIRE(ec == error::device_not_found);
  REQUIRE_FALSE(none.is_open());
  CHECK(none.native_handle() == nullptr);

  const protection_domain pd(none, ec);
  CHECK(ec == not_open);
  CHECK_FALSE(pd.is_open());
  CHECK(thrown_by([&] { protection_domain{none}; }) == not_open);
  ibv_pd raw_pd{};
  CHECK_FALSE(protection_domain(none, &raw_pd, ownership::take).is_open());

  const completion_queue cq(io, none, {}, ec);
  CHECK(ec == not_open);
  CHECK_FALSE(cq.is_open());
  CHECK(thrown_by([&] { completion_queue(io, none); }) == not_open);
  ibv_cq raw_cq{};
  const completion_queue adopted(io, none, &raw_cq, ownership::take, {}, ec);
  CHECK(ec == not_open);
  CHECK_FALSE(adopted.is_open());

  device_events events(io);
  events.open(none, ec);
  CHECK(ec == not_open);
  CHECK_FALSE(events.is_open());
  CHECK(thrown_by([&] { device_events(io, none); }) == not_open);
}

TEST_CASE("nothing that needs a device is made of a pool that has none") {
  asio::io_context io(1);
  for (const memory_pool& pool : {memory_pool(), memory_pool(protection_domain())}) {
    CAPTURE(pool.is_open());
    error_code ec;
    const shared_receives receives(io, pool, {}, ec);
    CHECK(ec == not_open);
    CHECK_FALSE(receives.is_open());
    CHECK(thrown_by([&] { global_memory(io, pool, 1); }) == not_open);
  }
}
