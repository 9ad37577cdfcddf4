// SPDX-License-Identifier: BSL-1.0
// Reads the facts of the machine's ports, and opens the device of the best one.
#include "core/described_error.hpp"
#include "core/device_files.hpp"
#include "verbs/device_impl.hpp"
#include "verbs/port_ranking.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>

#include <algorithm>
#include <fstream>
#include <sched.h>

namespace asio_rdma {
namespace {

using detail::port_facts;

std::optional<int> node_of(const device& d) {
  int node = -1;
  std::ifstream("/sys/class/infiniband/" + d.name() + "/device/numa_node") >> node;
  return node >= 0 ? std::optional(node) : std::nullopt;
}

std::optional<int> node_of_caller() {
  unsigned cpu = 0, node = 0;
  return getcpu(&cpu, &node) == 0 ? std::optional(static_cast<int>(node)) : std::nullopt;
}

// `active_speed` has 8 bits. Newer versions of rdma-core report what does not fit into them apart
// (ibv_query_port(3)).
template <class Port>
std::uint32_t speed_of(const Port& port) noexcept {
  if constexpr (requires { port.active_speed_ex; })
    if (port.active_speed_ex != 0)
      return port.active_speed_ex;
  return port.active_speed;
}

std::uint32_t rate_of(const ibv_port_attr& port) noexcept {
  return detail::megabits_of(port.active_width, speed_of(port));
}

std::vector<port_facts> ports_of(const device& d) {
  std::vector<port_facts> result;
  const ibv_device_attr& attributes = d.attributes();
  const std::optional<int> node = node_of(d);
  for (std::uint8_t n = 1; n <= attributes.phys_port_cnt; ++n) {
    error_code ec;
    const ibv_port_attr port = d.port(n, ec);
    port_facts p;
    p.device = d.name();
    p.port = n;
    p.type = d.type();
    p.active = !ec && port.state == IBV_PORT_ACTIVE;
    p.infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND && p.type == transport::infiniband;
    p.is_software =
        attributes.vendor_id == detail::rxe_vendor || attributes.vendor_id == detail::siw_vendor;
    p.megabits = ec ? 0 : rate_of(port);
    p.node = node;
    p.addresses = d.addresses(n);
    result.push_back(std::move(p));
  }
  return result;
}

// The ports of this machine's devices, the best first.
std::vector<port_facts> ranked_ports() {
  std::vector<port_facts> result;
  for (const device::description& each : device::list()) {
    error_code ec;
    const device d = device::open(each.name, ec);
    if (ec) {
      port_facts closed;
      closed.device = each.name;
      closed.open_error = ec;
      result.push_back(std::move(closed));
      continue;
    }
    for (port_facts& p : ports_of(d))
      result.push_back(std::move(p));
  }
  detail::rank(result, node_of_caller());
  return result;
}

error_code no_active_port(const std::vector<port_facts>& ports) {
  return detail::describe(error::no_device, [&ports] {
    std::string names;
    for (const port_facts& p : ports)
      names += (names.empty() ? "" : ", ") + p.device + " port " + std::to_string(p.port);
    return "no RDMA device has an active port: " + names +
           " (is the network interface up? rdma link shows the state)";
  });
}

// Why no port fits. A device that could not be opened, or that libibverbs does not list, may be the
// one.
error_code why_none(const std::vector<port_facts>& ports, const error_code& none) {
  std::vector<std::string> listed;
  for (const port_facts& p : ports) {
    if (p.open_error == error::device_permission || p.open_error == error::device_file_missing)
      return p.open_error;
    listed.push_back(p.device);
  }
  if (const error_code ec = detail::unlisted_error({}, {}, listed, {}))
    return ec;
  if (ports.empty())
    return error::no_device;
  return none == error::no_device ? no_active_port(ports) : none;
}

// Opens the device of the first port that fits. The error is `none`, or a reason that precedes it.
template <class Fits>
device open_best(const std::vector<port_facts>& ports, Fits fits, const error_code& none,
                 error_code& ec) {
  for (const port_facts& p : ports) {
    if (p.open_error || !fits(p))
      continue;
    device result = device::open(p.device, ec);
    if (!ec)
      return result;
  }
  ec = why_none(ports, none);
  return {};
}

// The ports with this address.
auto having(const asio::ip::address& address) {
  return [&address](const port_facts& p) {
    return std::any_of(p.addresses.begin(), p.addresses.end(),
                       [&address](const auto& a) { return detail::matches(a, address); });
  };
}

// The local address of the route: a datagram socket has it when it is connected. Unspecified if
// there is no route.
asio::ip::address source_toward(const asio::ip::address& peer) {
  constexpr unsigned short any_port = 9;
  asio::io_context unused;
  asio::ip::udp::socket s(unused);
  error_code ec;
  if (s.connect({peer, any_port}, ec))
    return {};
  return s.local_endpoint(ec).address();
}

} // namespace

device device::open_first(error_code& ec) {
  return open_best(ranked_ports(), &detail::is_usable, error::no_device, ec);
}

device device::open_first() {
  error_code ec;
  device result = open_first(ec);
  detail::throw_if(ec, "device::open_first");
  return result;
}

device device::open_for(const asio::ip::address& address, error_code& ec) {
  if (address.is_unspecified())
    return open_first(ec);
  const std::vector<port_facts> ports = ranked_ports();
  device found = open_best(ports, having(address), error::no_gid, ec);
  if (ec != error::no_gid)
    return found;
  if (address.is_loopback())
    return open_best(ports, &detail::is_usable, error::no_device, ec);
  const asio::ip::address local = source_toward(address);
  return local.is_unspecified() ? device() : open_best(ports, having(local), error::no_gid, ec);
}

device device::open_for(const asio::ip::address& address) {
  error_code ec;
  device result = open_for(address, ec);
  if (ec)
    detail::throw_error(ec, "device::open_for", address.to_string());
  return result;
}

std::string device::explain() { return detail::explain(ranked_ports(), node_of_caller()); }

std::uint32_t device::megabits(std::uint8_t number) const {
  error_code ec;
  const ibv_port_attr attributes = port(number, ec);
  return ec ? 0 : rate_of(attributes);
}

std::uint8_t device::first_port() const {
  if (attributes().phys_port_cnt <= 1)
    return 1;
  std::vector<port_facts> ports = ports_of(*this);
  detail::rank(ports, node_of_caller());
  return detail::is_usable(ports.front()) ? ports.front().port : 1;
}

} // namespace asio_rdma
