// SPDX-License-Identifier: BSL-1.0
// Addresses as text: of IP, of GIDs, of hardware.
#pragma once

#include <optional>
#include <string>

namespace info {

/// The usual form of an IP address; empty if the text is none. An IPv4-mapped address becomes IPv4,
/// and a scope after % is removed.
std::string usual_form(const std::string& address);
/// The IP address of a GID as sysfs writes it.
std::string address_of_gid(const std::string& gid);
/// The link-local address of an Ethernet address (RFC 4291, appendix A); empty if it is none.
std::string link_local_of(const std::string& hardware);
/// Whether the GID is that of the hardware address: of iWARP the GID begins with the address, of
/// InfiniBand it is the end of an IPoIB interface's (RFC 4391, section 9.1.1).
bool has_hardware_of(const std::string& hardware, const std::string& gid, bool iwarp);
bool is_loopback(const std::string& address);
bool is_link_local(const std::string& address);
inline bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

} // namespace info
