// SPDX-License-Identifier: BSL-1.0
#include "device/two_hosts/hosts_support.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <sched.h>
#include <stdexcept>
#include <system_error>
#include <unistd.h>

namespace test {
namespace {

std::string interface_of(int host) {
  return "-n h" + std::to_string(host) + " qdisc %s dev v" + std::to_string(host) + " root";
}

std::string with(std::string text, const std::string& word) {
  return text.replace(text.find("%s"), 2, word);
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> lines(
      ::popen(("PATH=$PATH:/usr/sbin:/sbin " + command).c_str(), "r"), ::pclose);
  if (!lines)
    throw std::runtime_error(command);
  std::string result;
  std::array<char, 1024> line;
  while (std::fgets(line.data(), line.size(), lines.get()) != nullptr)
    result += line.data();
  return result;
}

void enter(int fd) {
  if (::setns(fd, CLONE_NEWNET) != 0)
    throw std::system_error(errno, std::generic_category(), "setns");
}

int open_namespace(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    throw std::system_error(errno, std::generic_category(), path);
  return fd;
}

} // namespace

void run(const std::string& command) {
  if (std::system(("PATH=$PATH:/usr/sbin:/sbin " + command).c_str()) != 0)
    throw std::runtime_error(command);
}

on_host::on_host(int host) : before_(open_namespace("/proc/thread-self/ns/net")) {
  const int fd = open_namespace("/run/netns/h" + std::to_string(host));
  enter(fd);
  ::close(fd);
}

on_host::~on_host() {
  enter(before_);
  ::close(before_);
}

device device_of(int host) {
  for (const auto& d : device::list())
    if (d.name.back() == '0' + host)
      return device::open(d.name);
  throw std::runtime_error("no device on host " + std::to_string(host));
}

asio::ip::address address_of(int host) {
  return asio::ip::make_address("10.0.0." + std::to_string(host));
}

loss::loss(int host, int percent) : interface_(interface_of(host)) {
  run("tc " + with(interface_, "add") + " netem loss " + std::to_string(percent) + "%");
}

loss::~loss() { std::system(("PATH=$PATH:/usr/sbin:/sbin tc " + with(interface_, "del")).c_str()); }

std::uint64_t loss::packets() const {
  const std::string statistics = output_of("tc -s " + with(interface_, "show"));
  const std::string before = "(dropped ";
  const std::size_t at = statistics.find(before);
  if (at == std::string::npos)
    throw std::runtime_error("no count of lost packets in the output of tc: " + statistics);
  return std::stoull(statistics.substr(at + before.size()));
}

link_down::link_down(int host) : host_(host) {
  run("ip -n h" + std::to_string(host) + " link set v" + std::to_string(host) + " down");
}

void link_down::up() {
  if (!std::exchange(down_, false))
    return;
  run("ip -n h" + std::to_string(host_) + " link set v" + std::to_string(host_) + " up");
}

link_down::~link_down() { up(); }

namespace {

void set_tcp_retries(int n) {
  for (const char* host : {"h1", "h2"})
    run(std::string("ip netns exec ") + host +
        " sysctl -qw net.ipv4.tcp_retries2=" + std::to_string(n));
}

} // namespace

short_tcp::short_tcp() { set_tcp_retries(2); }
short_tcp::~short_tcp() { set_tcp_retries(15); }

burden::burden(queue_pair& qp, const memory& from, const remote_buffer& to)
    : qp_(qp), from_(from), to_(to) {
  qp.async_wait_disconnect(gone.handler());
  for (got& r : receives)
    qp.async_receive(from.buffer(0, 64), r.handler());
  for (int i = 0; i < chains; ++i)
    write();
}

void burden::write() {
  ++started;
  qp_.async_write(from_.buffer(0, 4096), to_, [this](error_code ec, std::size_t) {
    ++ended;
    if (!ec && !stopped_)
      return write();
    if (ec == errc::timed_out)
      ++timed_out;
    else if (ec == asio::error::connection_reset)
      ++reset;
    else if (ec) {
      ++failed_otherwise;
      other = describe(ec);
    }
  });
}

bool burden::receives_over() const {
  for (const got& r : receives)
    if (!r.done())
      return false;
  return true;
}

two_hosts::two_hosts(const queue_pair_options& options, way how) {
  q1.open(pd1, options);
  q2.open(pd2, options);
  if (how == way::by_hand_where_possible && !iwarp())
    test::connect(io, q1, q2);
  else
    connect();
}

void two_hosts::connect() {
  connection accepted, connected;
  {
    const on_host here(1);
    listener.open({address_of(1), 0});
  }
  listener.async_accept(q1, accepted.handler());
  // siw creates its socket in the network of the thread that requests a connection; that is a later
  // step of this thread.
  const on_host here(2);
  initiator.async_connect(q2, listener.local_endpoint(), connected.handler());
  until([&] { return connected.done() && (connected.ec || accepted.done()); });
  if (accepted.ec || connected.ec)
    throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
  // On iWARP the connecting side sends first.
  got first;
  sent hello;
  q1.async_receive(m1.buffer(0, 64), first.handler());
  q2.async_send(m2.buffer(0, 64), hello.handler());
  until([&] { return first.done() && hello.done(); });
  if (first.ec || hello.ec)
    throw system_error(first.ec ? first.ec : hello.ec, "hello");
}

} // namespace test
