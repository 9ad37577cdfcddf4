// SPDX-License-Identifier: BSL-1.0
// Mistakes of other libraries with the attributes of queue pairs, one test for each.
#include "catch.hpp"
#include "device/support/pair.hpp"

#include <algorithm>

namespace test::mistakes_attributes_tests {
namespace {

ibv_qp_attr attributes(const queue_pair& q) {
  error_code ec;
  const ibv_qp_attr attr = q.query(
      IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_PORT | IBV_QP_MIN_RNR_TIMER | IBV_QP_RNR_RETRY |
          IBV_QP_RETRY_CNT | IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC,
      ec);
  REQUIRE_FALSE(ec);
  return attr;
}

} // namespace

TEST_CASE("min_rnr_timer left at 0 (655 ms) with infinite rnr_retry", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  const auto attr = attributes(p.a);
  CHECK(attr.min_rnr_timer == 12);
  CHECK(attr.rnr_retry == 6);
}

TEST_CASE("retry_cnt 7, which rxe takes as for ever", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(attributes(p.a).retry_cnt == default_retries(p.dev));
  CHECK(attributes(p.a).timeout == 18);
}

TEST_CASE("hop limit 1", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(attributes(p.a).ah_attr.grh.hop_limit == 64);
}

TEST_CASE("a partition other than the first can be selected") {
  queue_pair_options o;
  o.pkey_index = 3;
  const device d = open_device();
  if (d.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  asio::io_context io(1);
  queue_pair qp(io);
  error_code ec;
  qp.open(protection_domain(d), o, ec);
  REQUIRE_FALSE(ec); // rxe takes any index, though its table has one
  CHECK(attributes(qp).pkey_index == 3);
}

TEST_CASE("GID index, port or path MTU hard-coded", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  const auto attr = attributes(p.a);
  const auto port = p.dev.first_port();
  CHECK(attr.port_num == port);
  CHECK(attr.path_mtu == p.dev.port(port).active_mtu);
  REQUIRE(p.dev.best_gid(port));
  CHECK(attr.ah_attr.grh.sgid_index == p.dev.best_gid(port)->index);
  queue_pair_options options;
  options.path_mtu = IBV_MTU_512;
  pair narrow(options, {});
  CHECK(attributes(narrow.a).path_mtu == IBV_MTU_512);
  CHECK(attributes(narrow.b).path_mtu == IBV_MTU_512);
  CHECK(narrow.carries(std::string(5000, 'x')));
}

TEST_CASE("depth of reads left at 1", "[mistake]") {
  pair p;
  if (p.dev.type() == transport::iwarp)
    return not_on_this_device("attributes of InfiniBand queue pairs");
  const auto attr = attributes(p.a);
  const auto most =
      std::min({16, p.dev.attributes().max_qp_rd_atom, p.dev.attributes().max_qp_init_rd_atom});
  CHECK(attr.max_rd_atomic == most);
  CHECK(attr.max_dest_rd_atomic == most);
  queue_pair_options few;
  few.max_reads = 2;
  pair uneven(few, {});
  CHECK(attributes(uneven.b).max_rd_atomic == 2); // the other side's limit
  CHECK(attributes(uneven.a).max_dest_rd_atomic == 2);
}

} // namespace test::mistakes_attributes_tests
