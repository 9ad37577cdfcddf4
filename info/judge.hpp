// SPDX-License-Identifier: BSL-1.0
// The meaning of the facts: pure functions from facts to findings.
#pragma once

#include "facts.hpp"
#include "finding.hpp"

#include <string>
#include <vector>

namespace info {

struct question {
  std::string device;  ///< The only device to judge; empty: all.
  std::string address; ///< The address that a program will use; empty: none.
};

/// All findings, from the machine to its devices. If a port can be used, the errors of other ports
/// and devices become warnings. If asio_rdma-info-try has connected a device to itself, all errors
/// but a port that is down become warnings. If it has opened a software device of the process
/// itself, they become notes. The address is another question.
findings judge(const facts& f, const question& q);

/// Whether a finding is an error: something prevents use.
bool has_error(const findings& all);

// ---- its parts

void judge_process(const facts& f, findings& to);
void judge_files(const facts& f, findings& to);
void judge_absence(const facts& f, findings& to);
void judge_namespaces(const facts& f, findings& to);
void judge_device(const facts& f, const device_facts& d, findings& to);
void judge_port(const facts& f, const device_facts& d, const port_facts& p, findings& to);
void judge_address(const facts& f, const std::string& address, findings& to);
void judge_tried(const facts& f, const question& q, findings& to);

/// The IP addresses by which rdma_cm reaches a port, of this network namespace.
std::vector<std::string> addresses_of(const facts& f, const device_facts& d, const port_facts& p);
/// The bytes of a packet that an interface's MTU has room for on RoCE: the kernel's
/// `iboe_get_mtu` leaves 96 bytes for headers. 0 if none fit.
unsigned roce_mtu(unsigned interface_mtu);
/// The interface with this name; null if there is none.
const interface_facts* find_interface(const facts& f, const std::string& name);
const tried_device* find_tried(const facts& f, const std::string& device);

} // namespace info
