// SPDX-License-Identifier: BSL-1.0
// asio_rdma-perf: latency and bandwidth of the library between two machines.
#include "client.hpp"
#include "local_server.hpp"
#include "options.hpp"
#include "server.hpp"

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

constexpr int some_missing = 1, wrong_usage = 2;

void check_writable(const std::string& file) {
  if (!file.empty() && !std::ofstream(file, std::ios::app)) // before minutes of measurements
    throw perf::usage_error("the file '" + file + "' cannot be written");
}

void write(const std::string& file, const std::string& text) {
  if (file.empty())
    return;
  std::ofstream out(file);
  out << text;
  if (!out.flush())
    throw std::runtime_error("the file '" + file + "' cannot be written");
}

int listen(const perf::options& o) {
  perf::server s(o);
  std::printf("listens at TCP port %d%s\n", s.port(), o.clients == 0 ? ", until it is ended" : "");
  std::fflush(stdout);
  s.serve();
  return 0;
}

int measure(const perf::options& o) {
  check_writable(o.json);
  check_writable(o.svg);
  perf::results r;
  if (o.where.host.empty()) {
    const perf::local_server other(o);
    r = run_client(o, other.where(), 1);
  } else {
    r = run_client(o, o.where, 2);
  }
  std::cout << to_table(r) << std::flush;
  if (!std::cout)
    throw std::runtime_error("the table cannot be written");
  write(o.json, to_json(r));
  write(o.svg, to_svg(r));
  return r.has_problems() ? some_missing : 0;
}

} // namespace

int main(int argc, char* argv[]) try {
  const perf::options o = perf::parse_options({argv + 1, argv + argc});
  if (o.help) {
    std::cout << perf::help_text();
    return 0;
  }
  return o.listen ? listen(o) : measure(o);
} catch (const perf::usage_error& e) {
  std::cerr << "asio_rdma-perf: " << e.what() << " (--help tells more)" << std::endl;
  return wrong_usage;
} catch (const std::exception& e) {
  std::cerr << "asio_rdma-perf: " << e.what() << std::endl;
  return some_missing;
}
