// SPDX-License-Identifier: BSL-1.0
// asio_rdma-trial: does the library work with the RDMA device of this machine, and how fast?
#include "runner.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int some_failed = 1, wrong_usage = 2;
constexpr const char* default_port = "18530";

struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct arguments {
  trial::run_options run;
  bool help = false, serve = false;
  std::string output;
};

void print_help() {
  std::cout << R"(usage: asio_rdma-trial [options]

Checks whether asio_rdma works with the RDMA device of this machine, measures it,
and writes a report. The report has no names and no addresses of machines or users.

  --serve [PORT]        answers the trials of other machines at this TCP port ()"
            << default_port << R"()
  --peer HOST[:PORT]    the far side of each check is on this host, which serves
  --device NAME         RDMA device (default: $ASIO_RDMA_DEVICE, or the best one)
  --output FILE         the report (default asio_rdma-trial.txt; with --check NAME
                        asio_rdma-trial-NAME.txt)
  --seconds SECONDS     duration of each measurement (default 2)
  --check NAME          the only check to run, but for open, which describes the device
  --check-limit SECONDS a check that takes longer fails (default 20)
  --limit SECONDS       a check fails if it has not ended in this time (default 600)

Exit status: 0 if no check has failed, 1 if one has, 2 for wrong usage.

Checks: )" << trial::all_names()
            << std::endl;
}

double number(const std::string& option, const std::string& text, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0) || value > most)
    throw usage_error(option + ": '" + text + "' is no number of seconds above 0, at most " +
                      std::to_string(int(most)));
  return value;
}

std::string port(const std::string& text) {
  if (text.empty() || text.size() > 5 ||
      text.find_first_not_of("0123456789") != std::string::npos || std::stoi(text) > 65535)
    throw usage_error("'" + text + "' is no port");
  return text;
}

/// HOST, HOST:PORT, an IPv6 address, or [ADDRESS]:PORT.
void set_peer(trial::run_options& to, std::string text) {
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos && (text.find(':') == colon || text[colon - 1] == ']')) {
    to.port = port(text.substr(colon + 1));
    text.resize(colon);
  }
  if (text.size() > 2 && text.front() == '[' && text.back() == ']')
    text = text.substr(1, text.size() - 2);
  if (text.empty())
    throw usage_error("--peer: no host");
  to.peer = text;
}

arguments parse(const std::vector<std::string>& words) {
  arguments result;
  trial::run_options& run = result.run;
  run.port = default_port;
  if (const char* name = std::getenv("ASIO_RDMA_DEVICE"))
    run.side.device = name;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size())
        throw usage_error(option + " needs a value");
      return words[++i];
    };
    if (option == "--help" || option == "-h") {
      result.help = true;
    } else if (option == "--serve") {
      result.serve = true;
      if (i + 1 < words.size() && words[i + 1].front() != '-')
        run.port = port(value());
    } else if (option == "--peer") {
      set_peer(run, value());
    } else if (option == "--device") {
      run.side.device = value();
    } else if (option == "--output") {
      result.output = value();
    } else if (option == "--seconds") {
      run.side.seconds = number(option, value(), 10);
    } else if (option == "--check") {
      run.only = value();
      if (trial::find_check(run.only) == nullptr)
        throw usage_error("there is no check '" + run.only + "'");
    } else if (option == "--check-limit") {
      run.check_limit = number(option, value(), 600);
    } else if (option == "--limit") {
      run.limit = number(option, value(), 600);
    } else {
      throw usage_error("there is no option '" + option + "'");
    }
  }
  if (result.output.empty()) // a report of one check does not replace that of all
    result.output = "asio_rdma-trial" + (run.only.empty() ? "" : '-' + run.only) + ".txt";
  if (result.serve && !run.peer.empty())
    throw usage_error("--serve and --peer are for two machines");
  return result;
}

int run(const arguments& a) {
  const std::string no_file = "the file '" + a.output + "' cannot be written";
  if (!std::ofstream(a.output, std::ios::app)) // an earlier report is kept until this one is there
    throw usage_error(no_file);
  const trial::report r = trial::run(a.run);
  std::ofstream out(a.output);
  out << to_text(r);
  if (!out.flush())
    throw std::runtime_error(no_file);
  const std::size_t failed = r.count(trial::verdict::kind::failed);
  std::cout << r.count(trial::verdict::kind::passed) << " passed, " << failed << " failed, "
            << r.count(trial::verdict::kind::not_here) << " not here; the report is " << a.output
            << std::endl;
  return failed == 0 ? 0 : some_failed;
}

} // namespace

int main(int argc, char* argv[]) try {
  const arguments a = parse({argv + 1, argv + argc});
  if (a.help) {
    print_help();
    return 0;
  }
  if (a.serve)
    trial::serve(a.run);
  return run(a);
} catch (const usage_error& e) {
  std::cerr << "asio_rdma-trial: " << e.what() << " (--help tells more)" << std::endl;
  return wrong_usage;
} catch (const std::exception& e) {
  std::cerr << "asio_rdma-trial: " << e.what() << std::endl;
  return some_failed;
}
