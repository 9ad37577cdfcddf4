// SPDX-License-Identifier: BSL-1.0
#include "local_server.hpp"

#include "server.hpp"

#include <boost/system/system_error.hpp>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace perf {

namespace {

options options_of_server(const options& o) {
  options result;
  result.device = o.device;
  result.memory = o.memory;
  result.progress = false;
  result.session = 86400;
  result.where = {"127.0.0.1", "0"};
  return result;
}

} // namespace

local_server::local_server(const options& o) {
  const options mine = options_of_server(o);
  server s(mine); // its socket listens before there is a process, so the client can connect at once
  where_ = {"127.0.0.1", std::to_string(s.port())};
  process_ = ::fork();
  if (process_ < 0)
    throw boost::system::system_error(errno, boost::system::system_category(), "fork");
  if (process_ != 0)
    return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    s.serve();
  } catch (const std::exception&) { // the client notices that the server is gone
  }
  std::_Exit(1);
}

local_server::~local_server() {
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

} // namespace perf
