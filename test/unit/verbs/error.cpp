// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include <asio_rdma/error.hpp>

#include "core/described_error.hpp"
#include "core/device_files.hpp"

#include <boost/system/errc.hpp>

#include <set>
#include <sstream>
#include <string>

using namespace asio_rdma;
namespace errc = boost::system::errc;

namespace {

constexpr int first_error = static_cast<int>(error::no_device);
constexpr int last_error = static_cast<int>(error::peer_access_refused);

std::string message(int value) { return error_code(value, library_category()).message(); }

} // namespace

TEST_CASE("each error of the library has a message of its own") {
  const std::string unknown = message(last_error + 1);
  std::set<std::string> seen{unknown};
  for (int i = first_error; i <= last_error; ++i) {
    INFO(i);
    CHECK(seen.insert(message(i)).second);
    CHECK_FALSE(message(i).empty());
  }
}

TEST_CASE("each error of the library maps onto a generic condition") {
  for (int i = first_error; i <= last_error; ++i) {
    const error_code ec(i, library_category());
    INFO(ec.message());
    CHECK(ec.default_error_condition().category() == boost::system::generic_category());
    CHECK(ec.default_error_condition().value() != 0);
  }
}

TEST_CASE("the errors of a first set-up name the remedy") {
  CHECK(make_error_code(error::no_device).message().find("rdma link") != std::string::npos);
  CHECK(make_error_code(error::device_permission).message().find("/dev/infiniband") !=
        std::string::npos);
  CHECK(make_error_code(error::memory_limit).message().find("ulimit -l") != std::string::npos);
  CHECK(message(static_cast<int>(error::device_file_missing)).find("--device") !=
        std::string::npos);
  CHECK(message(static_cast<int>(error::module_missing)).find("modprobe") != std::string::npos);
  CHECK(message(static_cast<int>(error::provider_missing)).find("ibverbs-providers") !=
        std::string::npos);
  // The message depends on the machine; test/device/connecting/cm_unusable.cpp checks it.
  const std::string loopback = make_error_code(error::loopback_address).message();
  CHECK((loopback.find("use the address of one: ") != std::string::npos ||
         loopback.find("there is none with another") != std::string::npos));
}

TEST_CASE("library errors compare with generic conditions") {
  CHECK(error_code(error::no_device) == errc::no_such_device);
  CHECK(error_code(error::device_not_found) == errc::no_such_device);
  CHECK(error_code(error::device_permission) == errc::permission_denied);
  CHECK(error_code(error::memory_limit) == errc::not_enough_memory);
  CHECK(error_code(error::no_gid) == errc::address_not_available);
  CHECK(error_code(error::too_many_buffers) == errc::invalid_argument);
  CHECK(error_code(error::remote_range) == errc::result_out_of_range);
  CHECK(error_code(error::rejected) == errc::connection_refused);
  CHECK(error_code(error::peer_not_listening) == errc::connection_refused);
  CHECK(error_code(error::unreachable) == errc::host_unreachable);
  CHECK(error_code(error::incompatible_peer) == errc::protocol_error);
  CHECK(error_code(error::protocol_violation) == errc::protocol_error);
  CHECK(error_code(error::completion_queue_full) == errc::no_buffer_space);
  CHECK(error_code(error::owner_dead) == errc::owner_dead);
  CHECK(error_code(error::device_keeps_memory) == errc::device_or_resource_busy);
  CHECK(error_code(error::shared_receives_full) == errc::no_buffer_space);
  CHECK(error_code(error::shared_receives_closed) == errc::connection_aborted);
  CHECK(error_code(error::peer_out_of_memory) == errc::not_enough_memory);
  CHECK(error_code(error::peer_out_of_memory) != error_code(asio::error::no_memory));
  CHECK(error_code(error::peer_message_limit) == errc::message_size);
  CHECK(error_code(error::peer_message_limit) != error_code(asio::error::message_size));
  CHECK(error_code(error::device_file_missing) == errc::no_such_device);
  CHECK(error_code(error::provider_missing) == errc::no_such_device);
  CHECK(error_code(error::module_missing) == errc::no_such_device);
  CHECK(error_code(error::no_device) != errc::permission_denied);
  CHECK(error_code(error::rejected) != error_code(error::unreachable));
}

TEST_CASE("completion statuses are error codes that compare with generic conditions") {
  const error_code access = IBV_WC_REM_ACCESS_ERR;
  CHECK(access.category() == completion_category());
  CHECK(access == IBV_WC_REM_ACCESS_ERR);
  CHECK(access != IBV_WC_RETRY_EXC_ERR);
  CHECK(access == errc::permission_denied);
  CHECK(error_code(IBV_WC_REM_INV_REQ_ERR) == errc::permission_denied);
  CHECK(error_code(IBV_WC_RETRY_EXC_ERR) == errc::timed_out);
  CHECK(error_code(IBV_WC_RETRY_EXC_ERR) ==
        error_code(asio::error::timed_out).default_error_condition());
  CHECK(error_code(IBV_WC_RESP_TIMEOUT_ERR) == errc::timed_out);
  CHECK(error_code(IBV_WC_RNR_RETRY_EXC_ERR) == errc::no_buffer_space);
  CHECK(error_code(IBV_WC_LOC_LEN_ERR) == errc::message_size);
  CHECK(error_code(IBV_WC_LOC_PROT_ERR) == errc::bad_address);
  CHECK(error_code(IBV_WC_MW_BIND_ERR) == errc::invalid_argument);
  CHECK(error_code(IBV_WC_REM_OP_ERR) == errc::connection_aborted);
}

TEST_CASE("a flushed request would be a cancelled one") {
  CHECK(error_code(IBV_WC_WR_FLUSH_ERR) == errc::operation_canceled);
  // Code written for sockets compares with this error.
  CHECK(error_code(asio::error::operation_aborted) == errc::operation_canceled);
}

TEST_CASE("success is no error") {
  CHECK_FALSE(error_code(IBV_WC_SUCCESS));
  CHECK(error_code(IBV_WC_SUCCESS).default_error_condition() == boost::system::error_condition());
}

TEST_CASE("each completion status has a message of its own") {
  std::set<std::string> seen;
  for (int i = IBV_WC_SUCCESS; i <= IBV_WC_GENERAL_ERR; ++i) {
    const error_code ec(i, completion_category());
    INFO(ec.message());
    CHECK(seen.insert(ec.message()).second);
  }
}

TEST_CASE("the categories are distinct and named") {
  CHECK(library_category() != completion_category());
  CHECK(library_category() != boost::system::system_category());
  CHECK(std::string(library_category().name()) == "asio_rdma");
  CHECK(std::string(completion_category().name()) == "ibv_wc_status");
  CHECK(error_code(1, library_category()) != error_code(1, completion_category()));
}

TEST_CASE("errors are thrown as Asio's are") {
  CHECK_NOTHROW(detail::throw_if({}, "nothing"));
  try {
    detail::throw_if(error::no_gid, "connect");
    FAIL("nothing was thrown");
  } catch (const system_error& e) {
    CHECK(e.code() == error::no_gid);
    CHECK(std::string(e.what()).find("connect") != std::string::npos);
  }
}

TEST_CASE("an error with a text of its own compares equal to the plain one") {
  const auto text = [] {
    return std::string("no entry to /dev/infiniband/uverbs0");
  };
  const error_code plain = error::device_permission;
  const error_code ec = detail::describe(error::device_permission, text);
  CHECK(ec == plain);
  CHECK(plain == ec);
  CHECK(ec == error::device_permission);
  CHECK(ec != error::device_fatal);
  CHECK(ec.category() == library_category());
  CHECK(library_category() == ec.category());
  CHECK(hash_value(ec) == hash_value(plain));
  CHECK(ec == errc::permission_denied);
  CHECK(ec.failed());
  CHECK(ec.message() == text());
  std::ostringstream out, of_plain;
  out << ec;
  of_plain << plain;
  CHECK(out.str() == of_plain.str());
  CHECK(std::string(system_error(ec, "device::open").what()).find(text()) != std::string::npos);
  // Each text is kept once, so equal errors have one category.
  CHECK(&detail::describe(error::device_permission, text).category() == &ec.category());
  const error_code other = detail::describe(error::device_permission, [] { return "another"; });
  CHECK(other == ec);
  CHECK(other.message() == "another");
}

TEST_CASE("an exception names the object that the call was given") {
  try {
    detail::throw_error(error::device_fatal, "device::open", std::string("rxe7"));
    FAIL("nothing was thrown");
  } catch (const system_error& e) {
    CHECK(e.code() == error::device_fatal);
    CHECK(std::string(e.what()).find("device::open rxe7: ") == 0);
  }
}

TEST_CASE("the error of a registration has the limit on locked memory") {
  const error_code ec = detail::locked_memory_error();
  CHECK(ec == error::memory_limit);
  CHECK(ec.message().find("the limit on locked memory is ") != std::string::npos);
}

// The last one, as it leaves no room for other texts.
TEST_CASE("texts beyond the limit, and without memory, leave the plain error") {
  for (int i = 0; i < 1100; ++i)
    CHECK(detail::describe(error::unreachable, [i] { return std::to_string(i); }) ==
          error::unreachable);
  const error_code late = detail::describe(error::unreachable, [] { return "late"; });
  CHECK(late == error::unreachable);
  CHECK(late.message() == make_error_code(error::unreachable).message());
  const error_code none =
      detail::describe(error::unreachable, []() -> std::string { throw std::bad_alloc(); });
  CHECK(none.message() == make_error_code(error::unreachable).message());
}
