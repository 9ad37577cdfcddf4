// SPDX-License-Identifier: BSL-1.0
// Options in one expression, and their output.
#include <catch.hpp>

#include <asio_rdma/ostream.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

#include <chrono>
#include <sstream>
#include <string>

using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace test::options_tests {

using namespace asio_rdma;
using asio_rdma::access; // access(2) is a function

namespace {

template <class T>
std::string text(const T& value) {
  std::ostringstream os;
  os << value;
  return os.str();
}

} // namespace

TEST_CASE("options of a queue pair are set in one expression and printed") {
  const auto options = queue_pair_options()
                           .set_type(IBV_QPT_UC)
                           .set_send_depth(1)
                           .set_receive_depth(2)
                           .set_max_send_sge(3)
                           .set_max_receive_sge(4)
                           .set_max_inline(5)
                           .set_port(6)
                           .set_pkey_index(7)
                           .set_local(asio::ip::make_address("10.0.0.1"))
                           .set_path_mtu(IBV_MTU_2048)
                           .set_max_reads(8)
                           .set_timeout(9)
                           .set_retry_count(10)
                           .set_rnr_retry(11)
                           .set_min_rnr_timer(12)
                           .set_hop_limit(13)
                           .set_traffic_class(14)
                           .set_service_level(15);
  CHECK(text(options) ==
        "{type=UC, send_depth=1, receive_depth=2, max_send_sge=3, max_receive_sge=4, "
        "max_inline=5, port=6, pkey_index=7, local=10.0.0.1, path_mtu=2048, max_reads=8, "
        "timeout=9, retry_count=10, rnr_retry=11, min_rnr_timer=12, hop_limit=13, "
        "traffic_class=14, service_level=15}");
  CHECK(text(queue_pair_options()).find("{type=RC, ") == 0);
  CHECK(text(queue_pair_options()).find("local=none, path_mtu=0, ") != std::string::npos);
}

TEST_CASE("options of connections and streams are set in one expression and printed") {
  CHECK(text(remote_memory_options()
                 .set_rights(access::remote_read | access::remote_atomic)
                 .set_bytes(1)
                 .set_grants(2)
                 .set_default_lease(3s)
                 .set_longest_lease(4min)
                 .set_grace(5us)) == "{rights=remote_read|remote_atomic, bytes=1, grants=2, "
                                     "default_lease=3000000us, longest_lease=240000000us, "
                                     "grace=5us}");
  const std::string connection = text(connection_options()
                                          .set_receives(1)
                                          .set_receive_size(2)
                                          .set_max_receive_size(3)
                                          .set_sends(4)
                                          .set_gather(false)
                                          .set_max_message(5)
                                          .set_offers(6)
                                          .set_pulls(7)
                                          .set_pull_bytes(9)
                                          .set_keep_alive(8ms)
                                          .set_read_timeout(7ms)
                                          .set_remote_memory(remote_memory_options().set_bytes(9))
                                          .set_own_domain(true)
                                          .set_queue_pair(queue_pair_options().set_timeout(10)));
  CHECK(
      connection.find(
          "{receives=1, receive_size=2, max_receive_size=3, sends=4, gather=false, "
          "max_message=5, offers=6, pulls=7, pull_bytes=9, keep_alive=8000us, read_timeout=7000us, "
          "remote_memory={rights=remote_write|remote_read, bytes=9, ") == 0);
  CHECK(connection.find("own_domain=true, queue_pair={type=RC, ") != std::string::npos);
  CHECK(connection.find("timeout=10, ") != std::string::npos);
  CHECK(
      text(stream_options()
               .set_receives(1)
               .set_receive_size(2)
               .set_max_receive_size(3)
               .set_sends(4)
               .set_linger(5ms)
               .set_keep_alive(6ms)
               .set_read_timeout(5ms)
               .set_own_domain(true)
               .set_queue_pair(queue_pair_options().set_port(7)))
          .find("{receives=1, receive_size=2, max_receive_size=3, sends=4, linger=5000us, "
                "keep_alive=6000us, read_timeout=5000us, own_domain=true, queue_pair={type=RC, ") ==
      0);
}

TEST_CASE("options of other objects are set in one expression and printed") {
  const asio::ip::tcp::endpoint here(asio::ip::make_address("10.0.0.1"), 80);
  CHECK(text(connect_options()
                 .set_data(private_data(3))
                 .set_timeout(1s)
                 .set_local(here)
                 .set_type_of_service(2)) ==
        "{data=3 bytes, timeout=1000000us, local=10.0.0.1:80, type_of_service=2}");
  CHECK(text(log_options().set_least(log_severity::error).set_long_wait(3ms)) ==
        "{least=error, long_wait=3000us}");
  CHECK(text(acceptor_options().set_backlog(1).set_handshakes(2).set_patience(3ms)) ==
        "{backlog=1, handshakes=2, patience=3000us}");
  const auto admit = [](std::span<const std::byte>, const asio::ip::tcp::endpoint&) {
    return true;
  };
  CHECK(text(accept_options().set_data(private_data(1)).set_timeout(2ms).set_admit(admit)) ==
        "{data=1 bytes, timeout=2000us, admit=set}");
  CHECK(text(completion_queue_options()
                 .set_mode(completion_mode::busy)
                 .set_entries(1)
                 .set_spin(2us)
                 .set_completion_vector(3)) ==
        "{mode=busy, entries=1, spin=2us, completion_vector=3}");
  CHECK(text(memory_pool_options()
                 .set_rights(access::local_write)
                 .set_first_arena(1)
                 .set_limit(2)
                 .set_huge_pages(false)
                 .set_zeroed(true)
                 .set_log([](std::string_view) {})) ==
        "{rights=local_write, first_arena=1, limit=2, huge_pages=false, zeroed=true, log=set}");
  CHECK(text(shared_receive_queue_options().set_depth(1).set_max_sge(2)) == "{depth=1, max_sge=2}");
  CHECK(text(shared_receives_options().set_receives(1).set_receive_size(2).set_per_link(3)) ==
        "{receives=1, receive_size=2, per_link=3}");
  CHECK(text(global_memory_options()
                 .set_in_flight(1)
                 .set_lanes(connection_options().set_receives(2))
                 .set_shared_lanes(3))
            .find("{in_flight=1, lanes={receives=2, ") == 0);
  CHECK(text(global_memory_options().set_shared_lanes(3)).find(", shared_lanes=3}") !=
        std::string::npos);
  CHECK(text(alock_options().set_local_budget(1).set_remote_budget(2)) ==
        "{local_budget=1, remote_budget=2}");
}

TEST_CASE("enumerations are printed by name") {
  CHECK(text(queue_pair_state::closed) + text(queue_pair_state::open) +
            text(queue_pair_state::connected) + text(queue_pair_state::failed) ==
        "closedopenconnectedfailed");
  CHECK(text(queue_pair_state(17)) == "17");
  CHECK(text(completion_mode::event) + text(completion_mode::adaptive) +
            text(completion_mode::busy) + text(completion_mode::manual) ==
        "eventadaptivebusymanual");
  CHECK(text(visibility::completed) + text(visibility::flushed) == "completedflushed");
  CHECK(text(ownership::take) + text(ownership::borrow) == "takeborrow");
  CHECK(text(transport::infiniband) + text(transport::iwarp) + text(transport::other) ==
        "infinibandiwarpother");
  CHECK(text(log_severity::debug) + text(log_severity::error) == "debugerror");
  CHECK(text(log_event::open) + text(log_event::wait) == "openwait");
  CHECK(text(gid_entry::kind::infiniband) + text(gid_entry::kind::roce_v1) +
            text(gid_entry::kind::roce_v2) ==
        "infinibandroce_v1roce_v2");
  CHECK(text(placement::visible | placement::persistent) == "visible|persistent");
  CHECK(text(placement(0)) == "none");
  CHECK(text(access::local_read) == "local_read");
  CHECK(text(access::local_write | access::remote_write | access::remote_read |
             access::remote_atomic | access::window_bind) ==
        "local_write|remote_write|remote_read|remote_atomic|window_bind");
  CHECK(text(access::relaxed_ordering | access::on_demand | access::flush_visible |
             access::flush_persistent) ==
        "relaxed_ordering|on_demand|flush_visible|flush_persistent");
  CHECK(text(access(1024) | access::remote_read) == "remote_read|1024");
  CHECK(text(queue_pair::flags::none) == "none");
  CHECK(text(queue_pair::flags::solicited | queue_pair::flags::fenced |
             queue_pair::flags::unsignaled) == "solicited|fenced|unsignaled");
  CHECK(text(error::buffer_in_use) == make_error_code(error::buffer_in_use).message());
}

// Some compilers destroy a temporary of a co_await expression twice.
TEST_CASE("options that own memory may be temporaries of a co_await expression") {
  asio::io_context io;
  std::size_t bytes = 0;
  const auto size_of = [](const connect_options& options) -> asio::awaitable<std::size_t> {
    co_return options.data.size();
  };
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        bytes = co_await size_of(connect_options().set_data(private_data(1000)).set_timeout(1s));
        bytes += co_await size_of(connect_options().set_data(private_data(1000)));
      },
      asio::detached);
  io.run();
  CHECK(bytes == 2000);
}

} // namespace test::options_tests
