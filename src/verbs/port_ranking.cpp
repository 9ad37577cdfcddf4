// SPDX-License-Identifier: BSL-1.0
#include "verbs/port_ranking.hpp"

#include <algorithm>

namespace asio_rdma::detail {
namespace {

using node_number = std::optional<int>;

/// A reason to prefer a port: the larger value is better.
struct reason {
  const char* words;
  std::int64_t (*value)(const port_facts&, node_number);
};

constexpr reason reasons[] = {
    {"it can be opened",
     [](const port_facts& p, node_number) -> std::int64_t {
       return p.port != 0;
     }},
    {"it is active",
     [](const port_facts& p, node_number) -> std::int64_t {
       return p.active;
     }},
    {"it has reliable connections",
     [](const port_facts& p, node_number) -> std::int64_t {
       return p.type != transport::other;
     }},
    // A port of InfiniBand has a LID, by which an exchange connects without an address.
    {"it has an address in this network namespace",
     [](const port_facts& p, node_number) -> std::int64_t {
       return p.infiniband || !p.addresses.empty();
     }},
    {"it is an adapter, not software",
     [](const port_facts& p, node_number) -> std::int64_t {
       return !p.is_software;
     }},
    {"it is faster",
     [](const port_facts& p, node_number) -> std::int64_t {
       return p.megabits;
     }},
    {"it is on the caller's NUMA node",
     [](const port_facts& p, node_number node) -> std::int64_t {
       return node && p.node == node;
     }},
    {"its link layer is InfiniBand",
     [](const port_facts& p, node_number) -> std::int64_t {
       return p.infiniband;
     }},
    {"it has an address, which rdma_cm needs",
     [](const port_facts& p, node_number) -> std::int64_t {
       return !p.addresses.empty();
     }},
};

// The first reason that tells the ports apart, or null.
const reason* difference(const port_facts& a, const port_facts& b, node_number node) {
  const auto found = std::find_if(std::begin(reasons), std::end(reasons), [&](const reason& r) {
    return r.value(a, node) != r.value(b, node);
  });
  return found != std::end(reasons) ? &*found : nullptr;
}

std::string in_words(const port_facts& p, node_number node) {
  if (p.port == 0)
    return p.device + ": " + p.open_error.message();
  std::string result = p.device + " port " + std::to_string(p.port) + ": ";
  result += p.active ? "active" : "not active";
  if (p.type == transport::other)
    result += ", no reliable connections";
  result += p.type == transport::iwarp ? ", iWARP" : p.infiniband ? ", InfiniBand" : ", Ethernet";
  if (p.is_software)
    result += ", software";
  if (p.megabits != 0)
    result += ", " + std::to_string(p.megabits / 1000) + " Gb/s";
  if (p.node)
    result += ", NUMA node " + std::to_string(*p.node) + (p.node == node ? " (the caller's)" : "");
  result += ", " + (p.addresses.empty() ? "no address in this network namespace"
                                        : p.addresses.front().to_string());
  return result;
}

} // namespace

void rank(std::vector<port_facts>& ports, node_number node) {
  std::stable_sort(ports.begin(), ports.end(), [node](const port_facts& a, const port_facts& b) {
    const reason* const r = difference(a, b, node);
    return r != nullptr && r->value(a, node) > r->value(b, node);
  });
}

bool is_usable(const port_facts& port) noexcept { return port.port != 0 && port.active; }

std::string explain(std::span<const port_facts> ranked, node_number node) {
  std::string result;
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    result += std::to_string(i + 1) + ". " + in_words(ranked[i], node);
    if (!is_usable(ranked[i])) {
      result += "; not usable";
    } else if (i + 1 < ranked.size()) {
      const reason* const r = difference(ranked[i], ranked[i + 1], node);
      result += "; before the next because ";
      result += r != nullptr ? r->words : "the system lists it first";
    }
    result += '\n';
  }
  return result;
}

std::uint32_t megabits_of(std::uint8_t width, std::uint32_t speed) noexcept {
  struct code {
    std::uint32_t value;
    std::uint32_t meaning;
  };
  constexpr code lanes[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  constexpr code rates[] = {{1, 2500},   {2, 5000},   {4, 10000},    {8, 10000},   {16, 14000},
                            {32, 25000}, {64, 50000}, {128, 100000}, {256, 200000}};
  const auto meaning = [](std::span<const code> codes, std::uint32_t value) {
    const auto found = std::find_if(codes.begin(), codes.end(),
                                    [value](const code& c) { return c.value == value; });
    return found != codes.end() ? found->meaning : 0;
  };
  return meaning(lanes, width) * meaning(rates, speed);
}

std::vector<asio::ip::address> addresses_of(const gid_entry& entry, transport type,
                                            std::span<const network_interface> here) {
  constexpr std::size_t ethernet = 6, ipoib = 20;
  const bool iwarp = type == transport::iwarp;
  if (!iwarp && entry.type != gid_entry::kind::infiniband)
    return {entry.address()};
  const std::span<const std::uint8_t> gid(entry.gid.raw);
  const auto has_gid = [&](std::span<const std::uint8_t> hardware) {
    if (iwarp)
      return hardware.size() == ethernet && std::ranges::equal(hardware, gid.first(ethernet));
    return hardware.size() == ipoib && std::ranges::equal(hardware.last(gid.size()), gid);
  };
  std::vector<asio::ip::address> result;
  for (const network_interface& i : here)
    if (has_gid(i.hardware))
      result.insert(result.end(), i.addresses.begin(), i.addresses.end());
  return result;
}

bool is_here(const gid_entry& entry, std::string_view name,
             std::span<const network_interface> here) {
  if (entry.interface_index == 0)
    return true; // InfiniBand
  const auto found = std::find_if(here.begin(), here.end(), [&](const network_interface& i) {
    return i.index == entry.interface_index && (name.empty() || i.name == name);
  });
  if (found == here.end())
    return false;
  const asio::ip::address own = entry.address();
  // A link-local GID exists without such an address of the interface. Of iWARP it is no address.
  if (entry.type == gid_entry::kind::infiniband || (own.is_v6() && own.to_v6().is_link_local()))
    return true;
  return std::any_of(found->addresses.begin(), found->addresses.end(),
                     [&own](const asio::ip::address& a) { return matches(a, own); });
}

bool matches(const asio::ip::address& one, const asio::ip::address& wanted) {
  if (one.is_v6() && wanted.is_v6() && wanted.to_v6().scope_id() == 0)
    return one.to_v6().to_bytes() == wanted.to_v6().to_bytes();
  return one == wanted;
}

} // namespace asio_rdma::detail
