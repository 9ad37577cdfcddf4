// SPDX-License-Identifier: BSL-1.0
// The results of a trial, as text and as JSON.
#pragma once

#include "check.hpp"
#include "facts.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace trial {

/// The result of a check.
struct result {
  const check* of = nullptr;
  verdict end;
  std::vector<figure> figures;
};

struct report {
  int sides = 1;      ///< Machines.
  double seconds = 0; ///< The duration of the trial.
  std::string date;   ///< The day of its begin, of the universal time.
  facts of_device;
  facts of_far_device; ///< Empty if `sides` is 1.
  std::vector<result> results;

  std::size_t count(verdict::kind k) const;
};

/// A text for people. Its last line is the same as JSON.
std::string to_text(const report& r);

/// A line for a result, for people.
std::string line_of(const result& r);

/// The text without the names given, such as those of the machine and of its user, and, if
/// `addresses`, without addresses of the network. Messages of errors may contain them, and an
/// administrator may have given the device or the kernel such a name.
std::string without_names(std::string_view text, const std::vector<std::string>& names,
                          bool addresses = true);

} // namespace trial
