// SPDX-License-Identifier: BSL-1.0
// The attributes of a queue pair that rdma_cm has connected, how it ends, and mistakes of other
// libraries.
#include "catch.hpp"
#include "device/connecting/cm_support.hpp"
#include "device/support/sleep_count.hpp"

#include <boost/asio/post.hpp>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/mount.h>

namespace test::cm_attributes_tests {
namespace {

constexpr int all_attributes = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
                               IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER |
                               IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC;

// iWARP has none of these attributes.
bool has_attributes(const meeting& m) { return m.dev.type() != transport::iwarp; }

ibv_qp_attr attributes(const queue_pair& qp) {
  error_code ec;
  const ibv_qp_attr result = qp.query(all_attributes, ec);
  REQUIRE_FALSE(ec);
  return result;
}

// As many reads as the queues take at once, which is more than the device may have in flight.
void read_many(meeting& m, queue_pair& reader, memory& to, memory& from) {
  constexpr int count = 200;
  for (int i = 0; i < count; ++i)
    from.put_word(8 * static_cast<std::size_t>(i), static_cast<std::uint64_t>(i) + 1);
  int ended = 0;
  error_code failure;
  for (std::size_t i = 0; i < count; ++i)
    reader.async_read(to.buffer(8192 + 8 * i, 8), from.remote(8 * i, 8),
                      [&](error_code ec, std::size_t) {
                        ++ended;
                        if (ec)
                          failure = ec;
                      });
  m.until([&] { return ended == count; });
  CHECK_FALSE(failure);
  for (std::size_t i = 0; i < count; ++i)
    CHECK(to.word(8192 + 8 * i) == i + 1);
}

int traffic_class(const queue_pair& qp) { return attributes(qp).ah_attr.grh.traffic_class; }

void meet(meeting& m, const connect_options& c) {
  m.accept();
  m.initiator->async_connect(m.a, m.where(), c, m.connected.handler());
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  REQUIRE(m.connected.succeeded());
  REQUIRE(m.accepted.succeeded());
}

/// During its lifetime the administrator has set a type of service for a device of the kernel
/// (Documentation/ABI/testing/configfs-rdma_cm).
class administrator {
public:
  administrator(const std::string& device, int type_of_service) {
    namespace fs = std::filesystem;
    const fs::path root = "/sys/kernel/config";
    std::error_code ec;
    if (!fs::exists(root / "rdma_cm", ec))
      ::mount("none", root.c_str(), "configfs", 0, nullptr);
    folder_ = root / "rdma_cm" / device;
    made_ = fs::create_directory(folder_, ec);
    std::ifstream(file()) >> before_;
    is_set_ = before_ >= 0 && write(type_of_service);
  }
  administrator(const administrator&) = delete;
  ~administrator() {
    if (is_set_)
      write(before_);
    std::error_code ec;
    if (made_)
      std::filesystem::remove(folder_, ec);
  }
  /// False if this process may not, or the device is not the kernel's. The kernel also accepts the
  /// setting for siw, where it has no effect.
  bool is_set() const { return is_set_; }

private:
  std::filesystem::path file() const { return folder_ / "ports/1/default_roce_tos"; }
  bool write(int value) { return bool(std::ofstream(file()) << value << std::flush); }

  std::filesystem::path folder_;
  int before_ = -1;
  bool made_ = false, is_set_ = false;
};

} // namespace

TEST_CASE("each side's own options are in force") {
  queue_pair_options x, y;
  x.timeout = 10, y.timeout = 12;
  x.retry_count = 2, y.retry_count = 5;
  x.rnr_retry = 3, y.rnr_retry = 4;
  x.min_rnr_timer = 5, y.min_rnr_timer = 7;
  meeting m(x, y);
  m.meet();
  CHECK(m.carries("hello"));
  if (!has_attributes(m))
    return;
  const ibv_qp_attr a = attributes(m.a), b = attributes(m.b);
  CHECK(a.qp_state == IBV_QPS_RTS);
  CHECK(b.qp_state == IBV_QPS_RTS);
  CHECK(int(a.timeout) == 10);
  CHECK(int(b.timeout) == 12);
  CHECK(int(a.retry_cnt) == 2);
  CHECK(int(b.retry_cnt) == 5);
  CHECK(int(a.rnr_retry) == 3);
  CHECK(int(b.rnr_retry) == 4);
  CHECK(int(a.min_rnr_timer) == 5);
  CHECK(int(b.min_rnr_timer) == 7);
  CHECK(a.path_mtu == b.path_mtu);
}

TEST_CASE("both sides read, with any limits of each side") {
  struct depths {
    std::uint8_t a, b;
  };
  const auto d = GENERATE(depths{16, 16}, depths{4, 2}, depths{2, 4}, depths{1, 16});
  queue_pair_options x, y;
  x.max_reads = d.a;
  y.max_reads = d.b;
  meeting m(x, y);
  m.meet();
  CHECK(m.carries("the connector speaks first"));
  if (has_attributes(m)) {
    const int least = std::min(m.a.options().max_reads, m.b.options().max_reads);
    CHECK(int(attributes(m.a).max_rd_atomic) == least);
    CHECK(int(attributes(m.b).max_rd_atomic) == least);
    CHECK(int(attributes(m.a).max_dest_rd_atomic) >= least);
    CHECK(int(attributes(m.b).max_dest_rd_atomic) >= least);
  }
  read_many(m, m.a, m.ma, m.mb);
  read_many(m, m.b, m.mb, m.ma);
}

TEST_CASE("the type of service is the traffic class of both queue pairs", "[h2]") {
  meeting m;
  connect_options c;
  c.type_of_service = 106;
  meet(m, c);
  CHECK(m.carries("first"));
  if (!has_attributes(m))
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(traffic_class(m.a) == 106);
  CHECK(traffic_class(m.b) == 106);
}

TEST_CASE("a traffic class of a queue pair replaces the type of service on its side") {
  const bool of_connector = GENERATE(true, false);
  queue_pair_options own;
  own.traffic_class = 32;
  meeting m(of_connector ? own : queue_pair_options(), of_connector ? queue_pair_options() : own);
  connect_options c;
  c.type_of_service = 106;
  meet(m, c);
  CHECK(m.carries("first"));
  if (!has_attributes(m))
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(traffic_class(m.a) == (of_connector ? 32 : 106));
  CHECK(traffic_class(m.b) == (of_connector ? 106 : 32));
}

TEST_CASE("the administrator's type of service applies to connections that set none", "[h2]") {
  meeting m;
  const administrator set(m.dev.name(), 106);
  if (!set.is_set() || m.dev.type() == transport::iwarp)
    return not_on_this_device("a type of service that this process may set for RoCE");
  SECTION("both sides use it") {
    meet(m, {});
    CHECK(traffic_class(m.a) == 106);
    CHECK(traffic_class(m.b) == 106);
  }
  SECTION("a connection sets another one") {
    connect_options c;
    c.type_of_service = 0;
    meet(m, c);
    CHECK(traffic_class(m.a) == 0);
    CHECK(traffic_class(m.b) == 0);
  }
}

TEST_CASE("the end of a connection is an event on both sides") {
  const connections_check nothing_left;
  meeting m;
  m.meet();
  CHECK(m.carries("hello"));
  const bool connector_closes = GENERATE(true, false);
  queue_pair& closing = connector_closes ? m.a : m.b;
  queue_pair& other = connector_closes ? m.b : m.a;
  memory& mine = connector_closes ? m.ma : m.mb;
  memory& its = connector_closes ? m.mb : m.ma;
  outcome<void> closed, gone;
  got mine_received[3], its_received[3];
  closing.async_wait_disconnect(closed.handler());
  other.async_wait_disconnect(gone.handler());
  for (std::size_t i = 0; i < 3; ++i) {
    closing.async_receive(mine.buffer(64 * i, 64), mine_received[i].handler());
    other.async_receive(its.buffer(64 * i, 64), its_received[i].handler());
  }
  closing.close();
  drain(m.io);
  CHECK(closed.calls == 1);
  CHECK(closed.ec == asio::error::operation_aborted);
  CHECK(gone.calls == 1);
  CHECK(gone.ec == asio::error::connection_reset);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(mine_received[i].calls == 1);
    CHECK(mine_received[i].ec == asio::error::operation_aborted);
    CHECK(its_received[i].calls == 1);
    CHECK(its_received[i].ec == asio::error::connection_reset);
  }
  CHECK(other.state() == queue_pair_state::failed);
  sent late;
  other.async_send(its.buffer(0, 1), late.handler());
  m.until([&] { return late.done(); });
  CHECK(late.ec == asio::error::connection_reset);
}

TEST_CASE("a sleep in a connect path", "[mistake]") {
  meeting m;
  const int threads = count_threads(), sleeps = count_sleeps();
  m.connect();
  m.accept();
  // Both operations run only in the context, but for one call of a thread of the library's.
  m.until([&] {
    CHECK(count_threads() <= threads + 1);
    return m.connected.done() && m.accepted.done();
  });
  CHECK(m.connected.succeeded());
  CHECK(count_sleeps() == sleeps);
  timespec none{};
  ::nanosleep(&none, nullptr);
  REQUIRE(count_sleeps() == sleeps + 1); // the count is of this program's calls
}

TEST_CASE("an event queue handled by a blocking call inside the event loop, while connecting",
          "[mistake]") {
  meeting m;
  m.connect();
  outcome<connection_request> request;
  m.listener->async_wait_request(request.handler());
  m.until([&] { return request.done(); });
  // No answer has come yet, so a wait for it inside the event loop would block for ever.
  int ran = 0;
  for (int i = 0; i < 10; ++i) {
    asio::post(m.io, [&] { ++ran; });
    m.until([&] { return ran == i + 1; });
    CHECK_FALSE(m.connected.done());
  }
  m.listener->async_accept(std::move(request.value), m.b, m.accepted.handler());
  m.until([&] { return m.connected.done() && m.accepted.done(); });
  CHECK(m.connected.succeeded());
}

TEST_CASE("min_rnr_timer left at rdma_cm's 0", "[mistake]") {
  meeting m;
  m.meet();
  if (!has_attributes(m))
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(int(attributes(m.a).min_rnr_timer) == 12);
  CHECK(int(attributes(m.b).min_rnr_timer) == 12);
  CHECK(int(attributes(m.a).rnr_retry) == 6);
  CHECK(int(attributes(m.b).retry_cnt) ==
        default_retries(m.b.get_protection_domain().get_device()));
}

TEST_CASE("hop limit 1, as rdma_cm has it", "[mistake]") {
  meeting m;
  m.meet();
  if (!has_attributes(m))
    return not_on_this_device("attributes of InfiniBand queue pairs");
  CHECK(int(attributes(m.a).ah_attr.grh.hop_limit) >= 64);
  CHECK(int(attributes(m.b).ah_attr.grh.hop_limit) >= 64);
}

TEST_CASE("depth of reads left at 1, by rdma_cm", "[mistake]") {
  meeting m;
  m.meet();
  if (!has_attributes(m))
    return not_on_this_device("attributes of InfiniBand queue pairs");
  for (const queue_pair* qp : {&m.a, &m.b}) {
    CHECK(int(attributes(*qp).max_rd_atomic) == int(qp->options().max_reads));
    CHECK(int(attributes(*qp).max_dest_rd_atomic) == int(qp->options().max_reads));
    CHECK(int(qp->options().max_reads) > 1);
  }
}

} // namespace test::cm_attributes_tests
