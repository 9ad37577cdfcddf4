// SPDX-License-Identifier: BSL-1.0
#include "files.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>

namespace info {

namespace fs = std::filesystem;

fs::path files::operator/(std::string_view path) const {
  return root_ / fs::path(path).relative_path();
}

bool files::has(std::string_view path) const {
  std::error_code ec;
  return fs::exists(*this / path, ec);
}

std::string files::line(std::string_view path) const {
  std::string result;
  std::getline(std::ifstream(*this / path), result);
  const std::size_t last = result.find_last_not_of(" \t\r\n");
  result.resize(last == std::string::npos ? 0 : last + 1);
  return result;
}

std::string files::text(std::string_view path) const {
  std::ostringstream result;
  const std::ifstream in(*this / path);
  if (in)
    result << in.rdbuf();
  return result.str();
}

std::vector<std::string> files::names(std::string_view path) const {
  std::vector<std::string> result;
  std::error_code ec;
  for (fs::directory_iterator i(*this / path, ec), end; !ec && i != end; i.increment(ec))
    result.push_back(i->path().filename());
  std::sort(result.begin(), result.end());
  return result;
}

std::string files::link(std::string_view path) const {
  std::error_code ec;
  return fs::read_symlink(*this / path, ec).filename();
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(by), text.size());
    result.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  std::istringstream in{std::string(text)};
  for (std::string word; in >> word;)
    result.push_back(word);
  return result;
}

std::optional<unsigned long long> number(std::string_view text, int base) {
  if (base == 16 && text.starts_with("0x"))
    text.remove_prefix(2);
  unsigned long long result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result, base);
  if (error != std::errc() || end != text.data() + text.size())
    return {};
  return result;
}

std::string value_of(std::string_view lines, std::string_view key) {
  for (const std::string& line : split(lines, '\n'))
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == '=') {
      std::string result = line.substr(key.size() + 1);
      std::erase(result, '"');
      return result;
    }
  return {};
}

} // namespace info
