// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_CM_ADDRESSES_HPP
#define SOFT_CM_ADDRESSES_HPP

#include "cm/cm_id.hpp"

#include <netinet/in.h>

namespace soft {

socklen_t size_of(const sockaddr& a) noexcept;
bool is_any(const sockaddr& a) noexcept;
in_port_t& port_of(sockaddr& a) noexcept;

/// Binds the id to an address, and to a free port if it names none. Returns errno of socket(2) and
/// bind(2).
int bind_port(cm_id& id, const sockaddr& address);
void release_port(cm_id& id);
/// Lets a socket share its port with others as the id's options say.
void set_sharing(int fd, const cm_id& id);
/// An error if another id of this process keeps the id's address from it. `listens`: a listener has
/// its port for itself. As the kernel's cma_check_port: EADDRINUSE, but EADDRNOTAVAIL if one of the
/// addresses is the wildcard address.
int check_port(cm_id& id, bool listens);
/// Whether both may be the address of one packet.
bool overlap(sockaddr& a, sockaddr& b) noexcept;
/// Whether a packet to `address` reaches the listener.
bool serves(cm_id& listener, sockaddr& address);
/// Whether the listener takes a request that came to its socket from `from`. The socket takes those
/// of IPv4 if RDMA_OPTION_ID_AFONLY was set after it was bound.
bool takes_from(const cm_id& listener, const sockaddr& from) noexcept;
/// Looks for the route from an address to another one of its family. If `from` is any address, it
/// becomes the one that the packets leave from, with the same port. Returns errno of connect(2):
/// ENETUNREACH if there is no route.
int find_route(sockaddr& from, const sockaddr& to);

} // namespace soft

#endif
