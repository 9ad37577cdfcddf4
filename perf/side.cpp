// SPDX-License-Identifier: BSL-1.0
#include "side.hpp"

#include "sizes.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <sys/utsname.h>
#include <thread>
#include <vector>

namespace perf {

using asio_rdma::device;
using asio_rdma::error_code;

namespace {

device open_device(const std::string& name, const asio::ip::address& reached) {
  if (!name.empty())
    return device::open(name);
  error_code ec;
  device d = device::open_for(reached, ec);
  return ec ? device::open_first() : d;
}

/// The address of the control connection is the one that the user has chosen.
asio::ip::address address_of(const device& d, const asio::ip::address& reached) {
  const std::vector<asio::ip::address> all = d.addresses();
  if (std::find(all.begin(), all.end(), reached) != all.end())
    return reached;
  if (const char* const given = std::getenv("ASIO_RDMA_ADDRESS"))
    return asio::ip::make_address(given);
  if (all.empty())
    throw std::runtime_error("the device " + d.name() + " has no IP address, which rdma_cm needs");
  return all.front();
}

std::string transport_of(const device& d, const ibv_port_attr& port) {
  if (d.type() == asio_rdma::transport::iwarp)
    return "iWARP";
  return port.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "RoCE";
}

} // namespace

side::side(asio::io_context& context, const std::string& name, const asio::ip::address& reached)
    : io(context), dev(open_device(name, reached)), pd(dev), address(address_of(dev, reached)) {}

asio_rdma::completion_queue side::queue(mode how) const {
  asio_rdma::completion_queue_options o;
  o.mode = how == mode::event      ? asio_rdma::completion_mode::event
           : how == mode::adaptive ? asio_rdma::completion_mode::adaptive
                                   : asio_rdma::completion_mode::busy;
  return {io, dev, o};
}

facts side::describe() const {
  const std::uint8_t number = dev.first_port();
  const ibv_port_attr port = dev.port(number);
  const std::uint32_t megabits = dev.megabits(number);
  std::ostringstream rate;
  rate << megabits / 1000.0 << " Gb/s";
  utsname system{};
  ::uname(&system);
  return {{"device", dev.name()},
          {"transport", transport_of(dev, port)},
          {"address", address.to_string()},
          {"MTU", std::to_string(128u << unsigned(port.active_mtu))},
          {"rate", megabits == 0 ? "unknown" : rate.str()},
          {"CPUs", std::to_string(std::thread::hardware_concurrency())},
          {"Linux", system.release}};
}

std::string to_line(const facts& all) {
  std::string result;
  for (const auto& [name, value] : all)
    result += (result.empty() ? "" : "\t") + name + '\t' + value;
  return result;
}

facts parse_facts(const std::string& line) {
  const std::vector<std::string> parts = split(line, '\t');
  facts result;
  for (std::size_t i = 0; i + 1 < parts.size() && result.size() < 16; i += 2)
    result.emplace_back(parts[i], parts[i + 1]);
  return result;
}

} // namespace perf
