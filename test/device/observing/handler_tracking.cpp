// SPDX-License-Identifier: BSL-1.0
// A program that is compiled with BOOST_ASIO_ENABLE_HANDLER_TRACKING, like the library that it is
// linked with. It checks the lines about its own operations, which it writes to a file.
#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#if !defined(BOOST_ASIO_ENABLE_HANDLER_TRACKING)
#error "this program is compiled with handler tracking"
#endif

namespace asio = boost::asio;
using asio_rdma::error_code;

namespace {

int failures = 0;
void check(bool condition, const std::string& what) {
  if (!condition) {
    ++failures;
    std::cout << "wrong: " << what << '\n';
  }
}

/// The lines of one operation.
struct tracked {
  std::string object, name, parent, begin, end;
  bool dropped = false;
};

std::map<std::string, tracked> read_lines(const char* file) {
  static const std::regex creation(R"(@asio\|[\d.]+\|(\d+)\*(\d+)\|(\w+)@(\w+)\.(.*))"),
      begin(R"(@asio\|[\d.]+\|>(\d+)\|(.*))"), end(R"(@asio\|[\d.]+\|(<|~|!)(\d+)\|(.*))");
  std::map<std::string, tracked> result;
  std::ifstream lines(file);
  std::smatch m;
  for (std::string line; std::getline(lines, line);)
    if (std::regex_match(line, m, creation)) {
      result[m[2]] = {m[3], m[5], m[1], "", "", false};
    } else if (std::regex_match(line, m, begin)) {
      result[m[1]].begin = m[2];
    } else if (std::regex_match(line, m, end)) {
      result[m[2]].end = m[1];
    }
  return result;
}

asio_rdma::device open_device() {
  const char* const name = std::getenv("ASIO_RDMA_DEVICE");
  return name != nullptr ? asio_rdma::device::open(name) : asio_rdma::device::open_first();
}

// Connects two queue pairs, sends eight bytes, sends one message on a strand, cancels a receive,
// and starts an operation that fails at once.
void run_operations() {
  const asio_rdma::device dev = open_device();
  const asio_rdma::protection_domain pd(dev);
  std::vector<char> bytes(64);
  asio_rdma::memory_region memory(pd, bytes.data(), bytes.size());
  asio::io_context io(1);
  asio_rdma::acceptor acceptor(io, {dev.addresses().front(), 0});
  asio_rdma::connector connector(io);
  asio_rdma::queue_pair a(io, pd), b(io, pd);
  int left = 2;
  const auto run = [&] {
    io.restart();
    while (left != 0)
      if (io.run_one() == 0)
        throw std::runtime_error("an operation did not complete");
  };
  const auto throw_if = [](const error_code& ec) {
    if (ec)
      throw asio_rdma::system_error(ec);
  };
  acceptor.async_accept(b, [&](const error_code& ec, const asio_rdma::connection_info&) {
    throw_if(ec);
    --left;
  });
  connector.async_connect(a, acceptor.local_endpoint(),
                          [&](const error_code& ec, const asio_rdma::connection_info&) {
                            throw_if(ec);
                            --left;
                          });
  run();
  b.async_receive(memory.buffer(0, 8), [&](const error_code& ec, const auto&) { throw_if(ec); });
  b.async_receive(memory.buffer(16, 8), [&](const error_code& ec, const auto&) { throw_if(ec); });
  asio::strand<asio::io_context::executor_type> strand(io.get_executor());
  left = 2;
  a.async_send(memory.buffer(8, 8), [&](const error_code& ec, std::size_t) {
    throw_if(ec);
    --left;
    a.async_send(memory.buffer(8, 4),
                 asio::bind_executor(strand, [&](const error_code& e, std::size_t) {
                   throw_if(e);
                   --left;
                 }));
  });
  run();
  a.async_wait_disconnect([](const error_code&) {});
  b.async_receive(memory.buffer(32, 8), [](const error_code&, const auto&) {});
  a.close();
  b.close();
  a.async_send(memory.buffer(0, 1), [](const error_code&, std::size_t) {});
  io.restart();
  io.run();
}

} // namespace

int main() try {
  char file[] = "/tmp/handler_tracking.XXXXXX";
  const int to = mkstemp(file);
  const int before = dup(STDERR_FILENO);
  if (to < 0 || before < 0 || dup2(to, STDERR_FILENO) < 0)
    throw std::runtime_error("no file for the lines");
  run_operations();
  dup2(before, STDERR_FILENO);
  const auto all = read_lines(file);
  unlink(file);

  std::multimap<std::string, const tracked*> by_name;
  for (const auto& [id, t] : all)
    by_name.emplace(t.object + '.' + t.name, &t);
  const auto only = [&](const std::string& name, std::size_t count) {
    check(by_name.count(name) == count, name + ": " + std::to_string(by_name.count(name)) +
                                            " lines, expected " + std::to_string(count));
    const auto found = by_name.find(name);
    return found == by_name.end() ? tracked() : *found->second;
  };
  const std::string success = "ec=system:0";
  check(only("acceptor.async_accept", 1).begin == success, "an accept ends with success");
  check(only("connector.async_connect", 1).begin == success, "a connect ends with success");
  only("queue_pair.async_receive", 3);
  only("queue_pair.async_send", 2);
  const tracked end = only("queue_pair.async_wait_disconnect", 1);
  check(end.begin.find("ec=") == 0 && end.begin != success, "a wait ends with an error");
  for (const auto& [name, t] : by_name)
    if (t->object == "queue_pair" || t->object == "acceptor" || t->object == "connector")
      check(!t->begin.empty() && t->end == "<", name + ": the call of the handler begins and ends");
  // The second send was started by the handler of the first.
  bool with_bytes = false, nested = false;
  for (auto [i, last] = by_name.equal_range("queue_pair.async_send"); i != last; ++i) {
    with_bytes = with_bytes || i->second->begin == success + ",bytes_transferred=8";
    const auto parent = all.find(i->second->parent);
    nested = nested || (parent != all.end() && parent->second.name == "async_send");
  }
  check(with_bytes, "a send shows its bytes");
  check(nested, "a send shows the handler that started it");
  std::cout << by_name.size() << " tracked operations\n";
  return failures == 0 ? 0 : 1;
} catch (const std::exception& e) {
  std::cout << "handler_tracking: " << e.what() << '\n';
  return 1;
}
