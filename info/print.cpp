// SPDX-License-Identifier: BSL-1.0
#include "print.hpp"

#include "judge.hpp"
#include "observing/json_text.hpp"

#include <asio_rdma/version.hpp>

#include <algorithm>
#include <sstream>

namespace info {
namespace {

using asio_rdma::detail::json_text;

const char* word_of(level how) {
  switch (how) {
  case level::ok:
    return "ok";
  case level::note:
    return "note";
  case level::warning:
    return "warning";
  case level::error:
    break;
  }
  return "error";
}

const char* place_of(remedy::place at) {
  return at == remedy::place::host ? "host" : at == remedy::place::image ? "image" : "here";
}

std::string version() {
  return std::to_string(ASIO_RDMA_VERSION_MAJOR) + '.' + std::to_string(ASIO_RDMA_VERSION_MINOR) +
         '.' + std::to_string(ASIO_RDMA_VERSION_PATCH);
}

std::size_t count(const findings& all, level how) {
  return std::size_t(std::count_if(all.begin(), all.end(),
                                   [how](const finding& each) { return each.how == how; }));
}

std::string counted(std::size_t n, const char* what) {
  return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s");
}

std::string member(const char* name, const std::string& text) {
  return json_text(name) + ':' + json_text(text);
}

std::string json_of(const facts& f, const finding& each) {
  std::string result = '{' + member("level", word_of(each.how)) + ',' + member("name", each.name) +
                       ',' + member("subject", each.subject) + ',' + member("text", each.text);
  if (!each.device.empty())
    result += ',' + member("device", each.device);
  if (each.port != 0)
    result += ",\"port\":" + std::to_string(each.port);
  if (!each.mend.command.empty())
    result += ',' + member("remedy", command_of(f, each.mend)) + ',' +
              member("remedy_place", place_of(each.mend.at));
  return result + '}';
}

} // namespace

std::string command_of(const facts& f, const remedy& r) {
  // On the host the user is another one, and an image is made by root.
  if (!r.needs_root || r.at != remedy::place::here || f.user.uid == 0)
    return r.command;
  if (r.command.find_first_of("&>") == std::string::npos)
    return "sudo " + r.command;
  return "sudo sh -c '" + r.command + '\'';
}

std::string to_text(const facts& f, const findings& all) {
  std::ostringstream out;
  out << "asio_rdma-info " << version() << ", Linux " << f.kernel << ", user " << f.user.name
      << (f.container.empty() ? "" : ", in a container (" + f.container + ')') << '\n';
  for (const finding& each : all) {
    out.width(9);
    out << std::left << word_of(each.how) << each.subject << ": " << each.text;
    if (!each.mend.command.empty()) {
      out << "; remedy";
      if (each.mend.at == remedy::place::host)
        out << " on the host";
      else if (each.mend.at == remedy::place::image)
        out << " in the image";
      out << ": " << command_of(f, each.mend);
    }
    out << '\n';
  }
  out << (has_error(all) ? "does not work: " : "works: ")
      << counted(count(all, level::error), "error") << ", "
      << counted(count(all, level::warning), "warning") << '\n';
  return out.str();
}

std::string to_json(const facts& f, const findings& all) {
  std::string result = '{' + member("version", version()) +
                       ",\"works\":" + (has_error(all) ? "false" : "true") + ',' +
                       member("kernel", f.kernel) + ',' + member("user", f.user.name) + ',' +
                       member("container", f.container) + ',' + member("netns_mode", f.netns_mode) +
                       ",\"findings\":[";
  for (const finding& each : all)
    result += (&each == &all.front() ? "" : ",") + json_of(f, each);
  return result + "]}\n";
}

} // namespace info
