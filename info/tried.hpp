// SPDX-License-Identifier: BSL-1.0
// Runs asio_rdma-info-try, and reads its lines. It is a program of its own: asio_rdma-info itself
// starts also where there is no rdma-core, and a driver that hangs or crashes does not end it.
#pragma once

#include "facts.hpp"

#include <string>
#include <vector>

namespace info {

/// A line is a word, the name of the device, and fields, separated by tabulators.
std::vector<tried_device> parse_tried(const std::string& lines);
/// Runs the program of that path for at most so many seconds.
tried_facts run_try(const std::string& program, const std::vector<std::string>& arguments,
                    double seconds);
/// The path of asio_rdma-info-try: beside this program, or in the folder that it is installed in.
/// Empty if there is none.
std::string find_try();

} // namespace info
