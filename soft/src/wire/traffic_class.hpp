// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_TRAFFIC_CLASS_HPP
#define SOFT_WIRE_TRAFFIC_CLASS_HPP

#include <cstdint>

namespace soft {

/// The traffic class of the packets of a TCP socket, which is the type of service of IPv4. Its two
/// lower bits are TCP's own (RFC 3168, section 5).
///@{
/// Errors are ignored: the packets then have the usual class.
void set_traffic_class(int socket, int family, std::uint8_t value) noexcept;
/// That of the peer's first packet, on the socket of an accepted connection; 0 if it is not known.
std::uint8_t traffic_class_of_peer(int socket, int family) noexcept;
///@}

} // namespace soft

#endif
