// SPDX-License-Identifier: BSL-1.0
// Files below a folder that stands for /. An absent file is an empty text, never an error.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace info {

class files {
public:
  explicit files(std::filesystem::path root) : root_(std::move(root)) {}

  std::filesystem::path operator/(std::string_view path) const;
  bool has(std::string_view path) const;
  /// The first line, without spaces at its end.
  std::string line(std::string_view path) const;
  std::string text(std::string_view path) const;
  /// The names in a folder, sorted.
  std::vector<std::string> names(std::string_view path) const;
  /// The last name of a symbolic link's target; empty if it is none.
  std::string link(std::string_view path) const;

private:
  std::filesystem::path root_;
};

std::vector<std::string> split(std::string_view text, char by);
/// The words between spaces and tabulators.
std::vector<std::string> words(std::string_view text);
std::optional<unsigned long long> number(std::string_view text, int base = 10);
/// The value of KEY=VALUE among lines, without quotes; empty if there is none.
std::string value_of(std::string_view lines, std::string_view key);

} // namespace info
