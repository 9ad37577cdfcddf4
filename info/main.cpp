// SPDX-License-Identifier: BSL-1.0
// asio_rdma-info: what prevents a program from using RDMA here, and which command mends it.
#include "addresses.hpp"
#include "judge.hpp"
#include "print.hpp"
#include "read_facts.hpp"
#include "tried.hpp"

#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int some_error = 1, wrong_usage = 2;

struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct arguments {
  info::question asked;
  bool help = false, json = false, tries = true;
  double limit = 20;
};

void print_help() {
  std::cout << R"(usage: asio_rdma-info [options]

Tells whether a program of this user can use RDMA here, what prevents it, and the
command that mends it: a line for each finding.

  --device NAME      the only device to look at (default: all)
  --address ADDRESS  also tells whether a device has this IP address
  --json             prints one line of JSON
  --no-trial         reads files only: opens no device, and listens at no address
  --limit SECONDS    ends the trial after this time (default 20)

Exit status: 0 if RDMA works, with warnings or without; 1 if something prevents it;
2 for wrong usage.
)" << std::flush;
}

arguments parse(const std::vector<std::string>& words) {
  arguments result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size())
        throw usage_error(option + " needs a value");
      return words[++i];
    };
    if (option == "--help" || option == "-h") {
      result.help = true;
    } else if (option == "--json") {
      result.json = true;
    } else if (option == "--no-trial") {
      result.tries = false;
    } else if (option == "--device") {
      result.asked.device = value();
    } else if (option == "--address") {
      const std::string text = value();
      result.asked.address = info::usual_form(text);
      if (result.asked.address.empty())
        throw usage_error("--address: '" + text + "' is no IP address");
    } else if (option == "--limit") {
      const std::string text = value();
      char* end = nullptr;
      result.limit = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != '\0' || !(result.limit > 0) || result.limit > 600)
        throw usage_error("--limit: '" + text + "' is no number of seconds above 0, at most 600");
    } else {
      throw usage_error("there is no option '" + option + "'");
    }
  }
  return result;
}

info::tried_facts try_devices(const arguments& a) {
  const std::string program = info::find_try();
  if (program.empty()) {
    info::tried_facts result;
    result.failure = "the program asio_rdma-info-try is not beside this one";
    return result;
  }
  std::vector<std::string> words;
  if (!a.asked.device.empty())
    words.insert(words.end(), {"--device", a.asked.device});
  if (!a.asked.address.empty())
    words.insert(words.end(), {"--address", a.asked.address});
  return info::run_try(program, words, a.limit);
}

} // namespace

int main(int argc, char* argv[]) try {
  const arguments a = parse({argv + 1, argv + argc});
  if (a.help) {
    print_help();
    return 0;
  }
  info::facts f = info::read_facts({});
  if (a.tries)
    f.tried = try_devices(a);
  const info::findings found = judge(f, a.asked);
  std::cout << (a.json ? to_json(f, found) : to_text(f, found)) << std::flush;
  return has_error(found) ? some_error : 0;
} catch (const usage_error& e) {
  std::cerr << "asio_rdma-info: " << e.what() << " (--help tells more)" << std::endl;
  return wrong_usage;
} catch (const std::exception& e) {
  std::cerr << "asio_rdma-info: " << e.what() << std::endl;
  return some_error;
}
