// SPDX-License-Identifier: BSL-1.0
// Requests that are put to the program (`accept_options::admit`) by several threads.
#include "catch.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/executor_work_guard.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace test::admission_threads_tests {

TEST_CASE("an acceptor calls the function by one thread at a time") {
  constexpr int clients = 24, threads = 4;
  talk s;
  asio::io_context io(threads);
  acceptor listener(io, endpoint(device_address(s.dev), 0));
  std::atomic<int> inside{0}, most{0}, calls{0};
  accept_options how;
  how.admit = [&](std::span<const std::byte> data, const endpoint&) {
    most = std::max(most.load(), ++inside);
    std::this_thread::yield();
    ++calls;
    --inside;
    return data.size() == 4;
  };
  int accepted = 0, connected = 0, refused = 0; // of the thread of s.io
  std::vector<std::string> failures;
  const auto count = [&](int& what, const error_code& ec) {
    ec ? failures.push_back(describe(ec)) : void(++what);
  };
  std::mutex mutex;
  std::vector<asio_rdma::connection> served;
  for (int i = 0; i != clients / 2 + 1; ++i) // one more: a bad request may be the last
    listener.async_accept<asio_rdma::connection>(
        s.pool, connection_options(), how, [&](error_code ec, asio_rdma::connection c) {
          const std::lock_guard lock(mutex);
          served.push_back(std::move(c));
          asio::post(s.io, [&, ec] { count(accepted, ec); });
        });
  const auto work = asio::make_work_guard(io);
  const auto reports = asio::make_work_guard(s.io);
  std::vector<std::thread> running;
  for (int i = 0; i != threads; ++i)
    running.emplace_back([&] { io.run(); });
  std::deque<asio_rdma::connection> objects;
  for (int i = 0; i != clients; ++i)
    s.initiator.async_connect(objects.emplace_back(s.io, s.pool), listener.local_endpoint(),
                              connect_options().set_data(bytes_of(i % 2 == 0 ? "bad" : "good")),
                              [&](const error_code& ec, const connection_info&) {
                                if (ec == error::rejected)
                                  ++refused;
                                else
                                  count(connected, ec);
                              });
  bool ended = true;
  try {
    s.until([&] {
      return !failures.empty() || accepted + connected + refused == clients + clients / 2;
    });
  } catch (const std::runtime_error&) {
    ended = false;
  }
  io.stop();
  for (std::thread& t : running)
    t.join();
  INFO(listener.statistics().requests << " requests, " << listener.statistics().waiting << " wait, "
                                      << listener.statistics().pending_accepts << " accepts wait, "
                                      << listener.statistics().handshakes << " handshakes");
  CHECK(ended);
  CHECK(failures.empty());
  CHECK(accepted == clients / 2);
  CHECK(connected == clients / 2);
  CHECK(refused == clients / 2);
  CHECK(most == 1);
  CHECK(calls == clients);
}

} // namespace test::admission_threads_tests
