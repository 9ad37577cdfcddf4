// SPDX-License-Identifier: BSL-1.0
#include "addresses.hpp"

#include "files.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstdint>
#include <netinet/in.h>
#include <vector>

namespace info {
namespace {

using bytes = std::vector<std::uint8_t>;

std::string text_of(const in6_addr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&address))
    ::inet_ntop(AF_INET, address.s6_addr + 12, text.data(), text.size());
  else
    ::inet_ntop(AF_INET6, &address, text.data(), text.size());
  return text.data();
}

/// The bytes of "02:00:00:00:00:01".
bytes hardware_bytes(const std::string& hardware) {
  bytes result;
  for (const std::string& each : split(hardware, ':'))
    result.push_back(std::uint8_t(number(each, 16).value_or(0)));
  return result;
}

} // namespace

std::string usual_form(const std::string& address) {
  const std::string plain = address.substr(0, address.find('%'));
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, plain.c_str(), &v4) == 1)
    return plain;
  if (::inet_pton(AF_INET6, plain.c_str(), &v6) == 1)
    return text_of(v6);
  return {};
}

std::string address_of_gid(const std::string& gid) { return usual_form(gid); }

std::string link_local_of(const std::string& hardware) {
  const bytes b = hardware_bytes(hardware);
  if (b.size() != 6)
    return {};
  in6_addr result{};
  const std::uint8_t all[] = {0xfe, 0x80, 0,    0,    0,    0,    0,   0, std::uint8_t(b[0] ^ 2u),
                              b[1], b[2], 0xff, 0xfe, b[3], b[4], b[5]};
  std::copy(std::begin(all), std::end(all), result.s6_addr);
  return text_of(result);
}

bool has_hardware_of(const std::string& hardware, const std::string& gid, bool iwarp) {
  in6_addr g{};
  if (::inet_pton(AF_INET6, gid.c_str(), &g) != 1)
    return false;
  const bytes b = hardware_bytes(hardware);
  if (iwarp)
    return b.size() == 6 && std::any_of(b.begin(), b.end(), [](auto each) { return each != 0; }) &&
           std::equal(b.begin(), b.end(), g.s6_addr);
  return b.size() == 20 && std::equal(b.begin() + 4, b.end(), g.s6_addr);
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

bool is_link_local(const std::string& address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

} // namespace info
