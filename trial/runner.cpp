// SPDX-License-Identifier: BSL-1.0
#include "runner.hpp"

#include "elapsed.hpp"
#include "processes.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <sstream>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trial {

namespace {

std::vector<const check*> all_checks() {
  std::vector<const check*> result;
  for (const auto part : {device_checks(), link_checks(), end_checks(), habit_checks(),
                          limit_checks(), speed_checks()})
    for (const check& c : part)
      result.push_back(&c);
  return result;
}

/// The day only: a time would tell when its user works.
std::string day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[16] = "";
  std::strftime(text, sizeof text, "%F", &parts);
  return text;
}

/// The check that describes the devices, which is the first one.
const check* describing_check() { return &device_checks().front(); }

/// The name of the device that all sides on this machine use: the user's, or the one that the child
/// process chooses. The ranking depends on the processor of the moment, so equal devices of a
/// machine may change their places from one process to the next. Empty if there is no device, which
/// each side then reports.
std::string chosen_device(const side_options& options,
                          const std::optional<asio::ip::address>& reached, double limit) {
  if (!options.device.empty())
    return options.device;
  std::array<int, 2> answer{};
  if (::pipe(answer.data()) != 0)
    throw system_error(error_code(errno, boost::system::system_category()), "pipe");
  process child([&] {
    ::close(answer[0]);
    try {
      const std::string name = open_device({}, reached).name();
      std::_Exit(::write(answer[1], name.data(), name.size()) < 0 ? 1 : 0);
    } catch (const std::exception&) { // the sides tell why
      std::_Exit(1);
    }
  });
  ::close(answer[1]);
  std::string name;
  if (read_until_end(answer[0], limit, name))
    child.wait(2);
  else
    name.clear();
  ::close(answer[0]);
  return name;
}

/// The address of this machine by which it reaches the peer, if there is one.
std::optional<asio::ip::address> address_towards(const run_options& options) {
  if (options.peer.empty())
    return {};
  try {
    const int s = socket_towards(options.peer, options.port);
    const auto result = address_of(s);
    ::close(s);
    return result;
  } catch (const std::exception&) { // each near side tells why
    return {};
  }
}

/// The process of a near side: runs it and writes the result's last line.
[[noreturn]] void be_near(const check& c, const run_options& options, int control, int results) {
  verdict v;
  try {
    if (control < 0)
      control = connect_to(options.peer, options.port,
                           std::string(c.name) + ' ' + std::to_string(options.side.seconds));
    session s(true, options.side, control, results);
    v = run_side(s, c.run);
  } catch (const std::exception& e) {
    v = {verdict::kind::failed, e.what()};
  }
  const std::string line = "end\t" + std::to_string(int(v.what)) + '\t' + v.reason + '\n';
  std::_Exit(::write(results, line.data(), line.size()) < 0 ? 1 : 0);
}

[[noreturn]] void be_far(const check& c, const side_options& options, int control) {
  try {
    session s(false, options, control, -1);
    run_side(s, c.run);
  } catch (const std::exception& e) { // the device cannot be opened
    const std::string line = "end " + std::to_string(int(verdict::kind::failed)) + ' ' +
                             without_names(e.what(), personal_names({}));
    std::_Exit(::write(control, (line + '\n').data(), line.size() + 1) < 0 ? 1 : 0);
  }
  std::_Exit(0);
}

/// Reads the lines of a near side.
void read_lines(const std::string& lines, const std::vector<std::string>& names, report& to,
                result& r) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    std::istringstream parts(line);
    std::string kind, name, rest;
    std::getline(parts, kind, '\t');
    std::getline(parts, name, '\t');
    if (kind == "fact" || (kind == "far fact" && to.sides == 2)) {
      std::getline(parts, rest);
      facts& device = kind == "fact" ? to.of_device : to.of_far_device;
      device.emplace_back(name, without_names(rest, names, false)); // a version has dots, too
    } else if (kind == "figure") {
      figure f;
      f.name = name;
      std::getline(parts, f.unit, '\t');
      parts >> f.library >> f.bare >> f.smaller_is_better;
      r.figures.push_back(f);
    } else if (kind == "end") {
      std::getline(parts, rest);
      r.end = {static_cast<verdict::kind>(std::stoi(name)), without_names(rest, names)};
    }
  }
}

result run_check(const check& c, const run_options& options, double limit, report& to) {
  result r{&c, {verdict::kind::failed, ""}, {}};
  std::array<int, 2> control{-1, -1}, results{};
  if ((options.peer.empty() && ::socketpair(AF_UNIX, SOCK_STREAM, 0, control.data()) != 0) ||
      ::pipe(results.data()) != 0)
    throw system_error(error_code(errno, boost::system::system_category()), "socketpair");
  process far, near;
  if (options.peer.empty())
    far = process([&] {
      for (const int d : {control[0], results[0], results[1]}) // the results end with the near side
        ::close(d);
      be_far(c, options.side, control[1]);
    });
  near = process([&] {
    ::close(results[0]);
    if (control[1] >= 0)
      ::close(control[1]);
    be_near(c, options, control[0], results[1]);
  });
  for (const int d : {results[1], control[0], control[1]})
    if (d >= 0)
      ::close(d);
  std::string lines;
  const bool ended = read_until_end(results[0], limit, lines);
  ::close(results[0]);
  const int status = ended ? near.wait(2) : near.kill();
  far.kill();
  read_lines(lines, personal_names(options.peer), to, r);
  if (!ended)
    r.end = {verdict::kind::failed, "has not ended within " + std::to_string(int(limit)) + " s"};
  else if (WIFSIGNALED(status))
    r.end = {verdict::kind::failed, "was ended by signal " + std::to_string(WTERMSIG(status))};
  return r;
}

} // namespace

const check* find_check(const std::string& name) {
  for (const check* c : all_checks())
    if (c->name == name)
      return c;
  return nullptr;
}

std::string all_names() {
  std::string result;
  for (const check* c : all_checks())
    result += std::string(result.empty() ? "" : " ") + c->name;
  return result;
}

report run(run_options options) {
  const auto begin = clock_type::now();
  options.side.device = chosen_device(options.side, address_towards(options),
                                      std::min(options.check_limit, options.limit));
  report to;
  to.date = day();
  to.sides = options.peer.empty() ? 1 : 2;
  for (const check* c : all_checks()) {
    if (!options.only.empty() && options.only != c->name && c != describing_check())
      continue;
    // A measurement has up to three parts of `seconds` each, with the library and with verbs.
    const double limit = std::min(options.check_limit + 6 * options.side.seconds,
                                  options.limit - seconds_since(begin));
    result r{c, {verdict::kind::failed, "no time was left for it"}, {}};
    if (limit > 0)
      r = run_check(*c, options, limit, to);
    std::printf("%s\n", line_of(r).c_str());
    std::fflush(stdout);
    to.results.push_back(std::move(r));
  }
  to.seconds = seconds_since(begin);
  return to;
}

void serve(const run_options& options) {
  const int listener = listen_at(options.port);
  std::printf("serves at TCP port %d, until it is ended\n", port_of(listener));
  std::fflush(stdout);
  // A machine with several devices may be reached by an address of each.
  std::map<std::optional<asio::ip::address>, std::string> devices;
  for (;;) {
    const int control = ::accept(listener, nullptr, nullptr);
    if (control < 0)
      continue;
    const auto reached = address_of(control);
    std::string& device = devices[reached];
    if (device.empty())
      device = chosen_device(options.side, reached, options.check_limit);
    run_detached([&] {
      ::close(listener);
      std::istringstream request(read_line(control));
      std::string name;
      side_options side = options.side;
      side.device = device;
      request >> name >> side.seconds;
      const check* const c = find_check(name);
      if (c == nullptr || !(side.seconds > 0 && side.seconds <= 60))
        std::_Exit(1);
      std::printf("%s\n", c->name);
      std::fflush(stdout);
      ::alarm(unsigned(options.check_limit + 6 * side.seconds) + 1);
      be_far(*c, side, control);
    });
    ::close(control);
  }
}

} // namespace trial
