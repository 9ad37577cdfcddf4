// SPDX-License-Identifier: BSL-1.0
#include "processes.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace trial {

namespace {

pid_t start(const std::function<void()>& body) {
  const pid_t id = ::fork();
  if (id < 0)
    throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (id == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::signal(SIGCHLD, SIG_DFL);
    body();
    std::_Exit(1);
  }
  return id;
}

} // namespace

process::process(const std::function<void()>& body) : id_(start(body)) {}

int process::wait(int seconds) {
  for (int i = 0; i < seconds * 100 && id_ != 0; ++i) {
    int status = 0;
    if (::waitpid(id_, &status, WNOHANG) != 0) { // it has ended, or the kernel has forgotten it
      id_ = 0;
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return kill();
}

int process::kill() {
  if (id_ == 0)
    return 0;
  ::kill(id_, SIGKILL);
  int status = 0;
  for (int i = 0; i < 300; ++i) {
    if (::waitpid(id_, &status, WNOHANG) != 0)
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  id_ = 0;
  return status;
}

void run_detached(const std::function<void()>& body) {
  ::signal(SIGCHLD, SIG_IGN); // the kernel forgets an ended child
  start(body);
}

bool read_until_end(int descriptor, double seconds, std::string& to) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const double left = std::chrono::duration<double>(end - clock::now()).count();
    if (left <= 0)
      return false;
    pollfd p{descriptor, POLLIN, 0};
    const int ready = ::poll(&p, 1, int(left * 1000) + 1);
    if (ready <= 0)
      continue;
    char bytes[4096];
    const ssize_t n = ::read(descriptor, bytes, sizeof bytes);
    if (n == 0)
      return true;
    if (n > 0)
      to.append(bytes, std::size_t(n));
  }
}

namespace {

struct addresses {
  addresses(const char* host, const char* port, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    const int e = ::getaddrinfo(host, port, &hints, &first);
    if (e != 0)
      throw std::runtime_error(std::string("the host or the port: ") + ::gai_strerror(e));
  }
  addresses(const addresses&) = delete;
  ~addresses() { ::freeaddrinfo(first); }

  addrinfo* first = nullptr;
};

} // namespace

int connect_to(const std::string& host, const std::string& port, const std::string& line) {
  const addresses all(host.c_str(), port.c_str(), 0);
  int e = 0;
  for (const addrinfo* a = all.first; a != nullptr; a = a->ai_next) {
    const int s = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    const std::string text = line + '\n';
    if (s >= 0 && ::connect(s, a->ai_addr, a->ai_addrlen) == 0 &&
        ::write(s, text.data(), text.size()) == ssize_t(text.size()))
      return s;
    e = errno;
    if (s >= 0)
      ::close(s);
  }
  throw std::runtime_error(std::string("the peer's TCP port: ") + std::strerror(e));
}

int socket_towards(const std::string& host, const std::string& port) {
  const addresses all(host.c_str(), port.c_str(), 0);
  for (const addrinfo* a = all.first; a != nullptr; a = a->ai_next) {
    const int s = ::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && ::connect(s, a->ai_addr, a->ai_addrlen) == 0)
      return s;
    if (s >= 0)
      ::close(s);
  }
  return -1;
}

int listen_at(const std::string& port) {
  const addresses all(nullptr, port.c_str(), AI_PASSIVE);
  // An IPv6 socket accepts IPv4, too.
  const addrinfo* best = all.first;
  for (const addrinfo* a = all.first; a != nullptr; a = a->ai_next)
    if (a->ai_family == AF_INET6)
      best = a;
  for (const addrinfo* a : {best, static_cast<const addrinfo*>(all.first)}) {
    const int s = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    const int on = 1, off = 0;
    ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ::setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (s >= 0 && ::bind(s, a->ai_addr, a->ai_addrlen) == 0 && ::listen(s, 16) == 0)
      return s;
    if (s >= 0)
      ::close(s);
  }
  throw std::runtime_error("TCP port " + port + ": " + std::strerror(errno));
}

int port_of(int listener) {
  sockaddr_in6 a{};
  socklen_t size = sizeof a;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&a), &size);
  return ntohs(a.sin6_port); // at the same place for IPv4
}

std::string read_line(int socket) {
  std::string result;
  char c = 0;
  while (result.size() < 200 && ::read(socket, &c, 1) == 1 && c != '\n')
    result += c;
  return result;
}

std::vector<std::string> personal_names(const std::string& peer) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::vector<std::string> result{host, peer};
  for (const std::string& full : {result[0], result[1]}) // the first part of a name with a domain
    if (const std::size_t dot = full.find('.');
        dot != std::string::npos && full.find_first_not_of("0123456789.") != std::string::npos)
      result.push_back(full.substr(0, dot));
  if (const passwd* const user = ::getpwuid(::getuid()))
    result.insert(result.end(), {user->pw_name, user->pw_dir});
  return result;
}

} // namespace trial
