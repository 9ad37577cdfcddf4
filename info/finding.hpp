// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <vector>

namespace info {

/// `note` asks for nothing; `warning` concerns speed or a part; `error` prevents use.
enum class level { ok, note, warning, error };

/// A command that mends a fault.
struct remedy {
  enum class place { here, host, image }; ///< `host` and `image`: of the container.
  std::string command;                    ///< Empty: there is none.
  bool needs_root = true;
  place at = place::here;
};

struct finding {
  level how = level::ok;
  std::string name;    ///< For programs, such as "device_file_permission".
  std::string subject; ///< The device, file or module.
  std::string text;
  remedy mend = {};
  std::string device = {}; ///< The device that it concerns; empty: the machine.
  unsigned port = 0;       ///< 0: all ports of the device.
};

using findings = std::vector<finding>;

} // namespace info
