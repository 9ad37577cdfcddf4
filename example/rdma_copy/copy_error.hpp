// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "protocol.hpp"

#include <boost/system/system_error.hpp>

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

/// The reason why a copy ends: one line for a person, and optionally the reason code for the peer.
class copy_error : public std::runtime_error {
public:
  explicit copy_error(const std::string& line, std::optional<protocol::reason> tell = {})
      : std::runtime_error(line), tell_(tell) {}

  std::optional<protocol::reason> tell() const noexcept { return tell_; }

private:
  std::optional<protocol::reason> tell_;
};

/// The caught exception as an error of the copy.
inline copy_error as_copy_error(const std::exception& e) {
  if (const auto* own = dynamic_cast<const copy_error*>(&e))
    return *own;
  if (const auto* system = dynamic_cast<const boost::system::system_error*>(&e))
    return copy_error(system->code().message(), protocol::reason::io);
  return copy_error(e.what(), protocol::reason::io);
}
