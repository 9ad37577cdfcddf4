// SPDX-License-Identifier: BSL-1.0
#include <catch.hpp>

#include <asio_rdma/buffer.hpp>
#include <asio_rdma/detail/queues/request.hpp>

#include <array>
#include <list>
#include <numeric>
#include <span>
#include <string>
#include <vector>

using namespace asio_rdma;

// Asio's own views are as expected, and this library's views are Asio buffers too.
static_assert(asio::is_const_buffer_sequence<asio_rdma::const_buffer>::value);
static_assert(asio::is_const_buffer_sequence<asio_rdma::mutable_buffer>::value);
static_assert(asio::is_mutable_buffer_sequence<asio_rdma::mutable_buffer>::value);
static_assert(!asio::is_mutable_buffer_sequence<asio_rdma::const_buffer>::value);
static_assert(asio::is_const_buffer_sequence<std::vector<asio_rdma::const_buffer>>::value);
static_assert(asio::is_mutable_buffer_sequence<std::array<asio_rdma::mutable_buffer, 3>>::value);

static_assert(const_buffer_sequence<asio_rdma::const_buffer>);
static_assert(const_buffer_sequence<asio_rdma::mutable_buffer>);
static_assert(const_buffer_sequence<std::vector<asio_rdma::const_buffer>>);
static_assert(const_buffer_sequence<std::vector<asio_rdma::mutable_buffer>>);
static_assert(const_buffer_sequence<std::array<asio_rdma::mutable_buffer, 2>>);
static_assert(const_buffer_sequence<std::list<asio_rdma::const_buffer>>);
static_assert(const_buffer_sequence<std::span<const asio_rdma::const_buffer>>);
static_assert(mutable_buffer_sequence<asio_rdma::mutable_buffer>);
static_assert(mutable_buffer_sequence<std::vector<asio_rdma::mutable_buffer>>);
// The device writes only to mutable buffers.
static_assert(!mutable_buffer_sequence<asio_rdma::const_buffer>);
static_assert(!mutable_buffer_sequence<std::vector<asio_rdma::const_buffer>>);
// Memory without a key is not registered.
static_assert(!const_buffer_sequence<asio::const_buffer>);
static_assert(!const_buffer_sequence<asio::mutable_buffer>);
static_assert(!const_buffer_sequence<std::vector<asio::mutable_buffer>>);
static_assert(!const_buffer_sequence<std::string>);
static_assert(!std::is_convertible_v<asio_rdma::const_buffer, asio_rdma::mutable_buffer>);

TEMPLATE_TEST_CASE("a slice keeps the key and is clamped to the end", "", asio_rdma::const_buffer,
                   asio_rdma::mutable_buffer) {
  std::array<char, 100> memory{};
  const TestType whole(memory.data(), memory.size(), 7);
  CHECK(whole.lkey() == 7);

  const auto tail = whole + 30;
  CHECK(tail.data() == memory.data() + 30);
  CHECK(tail.size() == 70);
  CHECK(tail.lkey() == 7);
  CHECK(tail.first(20).data() == memory.data() + 30);
  CHECK(tail.first(20).size() == 20);
  CHECK(tail.first(20).lkey() == 7);
  CHECK(tail.first(71).size() == 70);
  CHECK(tail.first(static_cast<std::size_t>(-1)).size() == 70);

  CHECK((whole + 100).size() == 0);
  CHECK((whole + 101).size() == 0);
  CHECK((whole + 101).data() == memory.data() + 100);
  CHECK((whole + static_cast<std::size_t>(-1)).data() == memory.data() + 100);
  CHECK((whole + static_cast<std::size_t>(-1)).lkey() == 7);

  TestType moving = whole;
  moving += 10;
  moving += 10;
  CHECK(moving.data() == memory.data() + 20);
  CHECK(moving.size() == 80);
}

TEST_CASE("an empty view is harmless") {
  const asio_rdma::const_buffer none;
  CHECK(none.size() == 0);
  CHECK(none.lkey() == 0);
  CHECK((none + 5).size() == 0);
  CHECK(none.first(5).size() == 0);
}

TEST_CASE("mutable views convert to const ones with their key") {
  std::array<char, 8> memory{};
  const asio_rdma::const_buffer c = asio_rdma::mutable_buffer(memory.data(), 8, 3);
  CHECK(c.data() == memory.data());
  CHECK(c.size() == 8);
  CHECK(c.lkey() == 3);
}

TEST_CASE("Asio's functions take the views") {
  std::string from = "abcdef";
  std::array<char, 6> to{};
  const asio_rdma::const_buffer source(from.data(), from.size(), 1);
  const std::array<asio_rdma::mutable_buffer, 2> sink{
      asio_rdma::mutable_buffer(to.data() + 3, 3, 2), asio_rdma::mutable_buffer(to.data(), 3, 2)};
  CHECK(asio::buffer_size(sink) == 6);
  CHECK(asio::buffer_copy(sink, source) == 6);
  CHECK(std::string(to.data(), to.size()) == "defabc");
}

TEST_CASE("a remote buffer is sliced within its bounds") {
  const remote_buffer whole{1000, 100, 9};
  CHECK(whole + 30 == remote_buffer{1030, 70, 9});
  CHECK((whole + 30).first(10) == remote_buffer{1030, 10, 9});
  CHECK((whole + 30).first(71) == remote_buffer{1030, 70, 9});
  CHECK(whole + 100 == remote_buffer{1100, 0, 9});
  CHECK(whole + 5000 == remote_buffer{1100, 0, 9});
  CHECK(whole + static_cast<std::uint64_t>(-1) == remote_buffer{1100, 0, 9});
  CHECK(whole != remote_buffer{1000, 100, 8});
}

TEST_CASE("buffers become scatter/gather elements, empty ones left out") {
  std::array<char, 100> memory{};
  const auto at = [&](std::size_t offset, std::size_t n) {
    return asio_rdma::mutable_buffer(memory.data() + offset, n, 5);
  };
  const std::vector<asio_rdma::mutable_buffer> buffers{at(0, 10), at(10, 0), at(20, 30)};
  const detail::elements<4> e(buffers);
  CHECK(e.bytes == 40);
  CHECK(e.problem == detail::request_error::none);
  REQUIRE(e.count == 2);
  CHECK(e.sges[0].addr == reinterpret_cast<std::uintptr_t>(memory.data()));
  CHECK(e.sges[0].length == 10);
  CHECK(e.sges[0].lkey == 5);
  CHECK(e.sges[1].addr == reinterpret_cast<std::uintptr_t>(memory.data() + 20));
  CHECK(e.sges[1].length == 30);

  const detail::elements<1> one(asio_rdma::const_buffer(at(1, 2)));
  CHECK(one.bytes == 2);
  CHECK(one.count == 1);
  const detail::elements<1> none(at(0, 0));
  CHECK(none.bytes == 0);
  CHECK(none.count == 0);
  CHECK(none.problem == detail::request_error::none);
}

TEST_CASE("more buffers than an operation has elements for are an error") {
  std::array<char, 4> memory{};
  const asio_rdma::const_buffer b(memory.data(), memory.size(), 1);
  CHECK(detail::elements<4>(std::vector(4, b)).problem == detail::request_error::none);
  CHECK(detail::elements<4>(std::vector(5, b)).problem == detail::request_error::too_many_buffers);
  CHECK(make_error_code(detail::request_error::too_many_buffers) == error::too_many_buffers);
}

TEST_CASE("a message is at most 2^31 bytes") {
  const std::uint64_t most = std::uint64_t(1) << 31;
  char here = 0; // only described, never read
  const asio_rdma::const_buffer whole(&here, most, 1), more(&here, most + 1, 1), bit(&here, 1, 1);
  const asio_rdma::const_buffer huge(&here, std::uint64_t(1) << 32, 1); // 0 in 32 bits
  using detail::request_error;
  CHECK(detail::elements<1>(whole).problem == request_error::long_message);
  CHECK(detail::elements<1>(whole).sges[0].length == most);
  CHECK(detail::elements<1>(more).problem == request_error::message_size);
  CHECK(detail::elements<1>(huge).problem == request_error::message_size);
  CHECK(detail::elements<2>(std::vector{whole, bit}).problem == request_error::message_size);
  CHECK(detail::elements<2>(std::vector{bit, huge}).problem == request_error::message_size);
  CHECK(make_error_code(request_error::message_size) == asio::error::message_size);
}

TEST_CASE("a message above 1 MiB is compared with the device's limit, a shorter one is not") {
  const std::uint64_t most = std::uint64_t(1) << 20;
  char here = 0; // only described, never read
  const asio_rdma::const_buffer few(&here, most, 1), more(&here, most + 1, 1), bit(&here, 1, 1);
  using detail::request_error;
  CHECK(detail::elements<1>(few).problem == request_error::none);
  CHECK(detail::elements<1>(more).problem == request_error::long_message);
  CHECK(detail::elements<2>(std::vector{few, bit}).problem == request_error::long_message);
  CHECK(detail::elements<2>(std::vector{few, bit}).count == 2);
  CHECK(detail::elements<2>(std::vector{more, bit, bit}).problem ==
        request_error::too_many_buffers);
  const detail::remote_request<1> beyond(IBV_WR_RDMA_WRITE, 0, 0, more, {0, most, 1});
  CHECK(beyond.problem == request_error::remote_range);
  CHECK_FALSE(make_error_code(request_error::long_message));
}

TEST_CASE("a request detects a range beyond the remote buffer, and a misaligned atomic operation") {
  char here = 0;
  const auto write = [&](std::size_t n, remote_buffer to) {
    return detail::remote_request<1>(IBV_WR_RDMA_WRITE, 0, 0, asio_rdma::const_buffer(&here, n, 1),
                                     to)
        .problem;
  };
  using detail::request_error;
  CHECK(write(100, {4096, 100, 1}) == request_error::none);
  CHECK(write(101, {4096, 100, 1}) == request_error::remote_range);
  CHECK(write(0, {4096, 0, 1}) == request_error::none);
  const auto add = [](remote_buffer to) {
    return detail::atomic_request(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, to, 1, 0).problem;
  };
  CHECK(add({4096, 8, 1}) == request_error::none);
  CHECK(add({4096, 7, 1}) == request_error::remote_range);
  CHECK(add({4100, 8, 1}) == request_error::misaligned);
}

TEST_CASE("elements are counted at compile time if the type of the buffers has their number") {
  CHECK(detail::max_elements<asio_rdma::const_buffer>() == 1);
  CHECK(detail::max_elements<asio_rdma::mutable_buffer>() == 1);
  CHECK(detail::max_elements<std::array<asio_rdma::const_buffer, 3>>() == 3);
  CHECK(detail::max_elements<std::array<asio_rdma::const_buffer, 0>>() == 1);
  CHECK(detail::max_elements<std::vector<asio_rdma::const_buffer>>() >= 4);
}
