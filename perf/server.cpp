// SPDX-License-Identifier: BSL-1.0
#include "server.hpp"

#include "control.hpp"
#include "side.hpp"
#include "work/end.hpp"

#include <asio_rdma/error.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace perf {

namespace {

constexpr double seconds_of_greeting = 5, seconds_between = 60;

tcp::endpoint endpoint_of(asio::io_context& io, const place& where) {
  tcp::resolver resolver(io);
  return resolver.resolve(where.host, where.port, tcp::resolver::passive).begin()->endpoint();
}

/// Listens at all addresses, of IPv6, too, if this machine has it.
void listen(tcp::acceptor& a, asio::io_context& io, const place& where) {
  const auto open = [&](const tcp::endpoint& at, error_code& ec) {
    a.open(at.protocol(), ec);
    if (!ec)
      a.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec && at.protocol() == tcp::v6())
      a.set_option(asio::ip::v6_only(false), ec);
    if (!ec)
      a.bind(at, ec);
    if (!ec)
      a.listen(asio::socket_base::max_listen_connections, ec);
  };
  error_code ec;
  if (where.host.empty()) {
    const auto port = static_cast<unsigned short>(std::stoi(where.port));
    open({tcp::v6(), port}, ec);
    if (ec) {
      a.close(ec);
      open({tcp::v4(), port}, ec);
    }
  } else {
    open(endpoint_of(io, where), ec);
  }
  if (ec)
    throw system_error(ec, "the TCP port " + where.port);
}

/// Waits for bytes of an end.
class arrivals : public listener {
public:
  arrivals(asio::io_context& io, far_end& e, control& c)
      : end_(e), control_(c), woken_(io, asio::steady_timer::time_point::max()) {
    e.listen(this);
  }
  arrivals(const arrivals&) = delete;
  ~arrivals() { end_.listen(nullptr); }

  awaitable<void> wait(std::uint64_t bytes) {
    wanted_ = bytes;
    while (end_.arrived() < bytes && !end_.error()) {
      error_code ec;
      co_await woken_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    }
    if (end_.arrived() > bytes)
      throw session_error("the client has sent more than it says");
  }

private:
  void changed() override {
    if (end_.arrived() >= wanted_)
      woken_.cancel();
  }
  void failed(const error_code&) override {
    woken_.cancel();
    control_.interrupt();
  }

  far_end& end_;
  control& control_;
  asio::steady_timer woken_;
  std::uint64_t wanted_ = ~std::uint64_t(0);
};

std::uint64_t bytes_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [behind, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || behind != text.data() + text.size())
    throw session_error("the client has sent no number of bytes");
  return value;
}

/// The session of one client.
class client_session {
public:
  client_session(asio::io_context& io, tcp::socket socket, const options& o)
      : io_(io), options_(o), control_(io, std::move(socket)), peer_(control_.peer_address()) {}

  awaitable<void> run() {
    std::string ended;
    try {
      co_await greet();
      co_await serve();
    } catch (const std::exception& e) {
      ended = std::string(": ") + e.what();
    }
    if (options_.progress.value_or(true)) {
      std::printf("%s: %u measurements%s\n", peer_.to_string().c_str(), measurements_,
                  ended.c_str());
      std::fflush(stdout);
    }
  }

private:
  awaitable<void> greet() {
    control_.allow(seconds_of_greeting);
    const std::string line = co_await control_.hear(); // gcc 12 forgets it in a condition
    if (line != greeting)
      throw session_error("it is no asio_rdma-perf of this version");
    co_await control_.tell(greeting);
    std::string why;
    try {
      side_.emplace(io_, options_.device, control_.local_address());
    } catch (const std::exception& e) {
      why = e.what();
    }
    if (!side_) {
      co_await control_.tell("refused " + why);
      throw session_error(why);
    }
    co_await control_.tell("facts " + to_line(side_->describe()));
  }

  awaitable<void> serve() {
    for (;;) {
      control_.allow(seconds_between);
      const std::string line = co_await control_.hear();
      if (line == "bye")
        co_return;
      std::unique_ptr<far_end> far;
      std::string why;
      request r;
      try {
        r = parse_request(line, options_.memory);
        far = make_far_end(*side_, r, options_.memory);
      } catch (const std::invalid_argument& e) {
        throw session_error(e.what());
      } catch (const std::exception& e) { // beyond a limit, of this program or of the machine
        why = e.what();
      }
      if (!far) {
        co_await control_.tell("refused " + why);
        continue;
      }
      control_.allow(longest_time(r));
      std::exception_ptr failed;
      try {
        co_await measure(*far);
      } catch (...) {
        failed = std::current_exception();
      }
      co_await far->close();
      if (failed)
        std::rethrow_exception(failed);
      co_await control_.tell(std::string("ended"));
      ++measurements_;
    }
  }

  awaitable<void> measure(far_end& far) {
    arrivals arrived(io_, far, control_);
    std::string why;
    try {
      co_await control_.tell("ready " + to_text(far.listening()));
      co_await control_.guard(far.accept());
      co_await control_.tell(std::string("connected"));
      co_await answer(far, arrived);
      co_return;
    } catch (const std::exception& e) {
      why = far.error() ? far.error().message() : e.what();
    }
    try {
      co_await control_.tell("refused " + why);
    } catch (const session_error&) { // the client is gone
    }
    throw session_error(why);
  }

  awaitable<void> answer(far_end& far, arrivals& arrived) {
    for (;;) {
      if (far.error())
        throw system_error(far.error());
      const std::string line = co_await control_.hear();
      if (line == "end")
        co_return;
      constexpr std::string_view word = "sync ";
      if (!line.starts_with(word))
        throw session_error("the client has sent an unexpected line");
      co_await control_.guard(arrived.wait(bytes_of(line.substr(word.size()))));
      if (!far.error())
        co_await control_.tell(std::string("done"));
    }
  }

  asio::io_context& io_;
  const options& options_;
  control control_;
  const asio::ip::address peer_;
  std::optional<side> side_;
  unsigned measurements_ = 0;
};

} // namespace

server::server(const options& o) : options_(o), acceptor_(io_) { listen(acceptor_, io_, o.where); }

void server::serve() {
  for (std::uint64_t i = 0; options_.clients == 0 || i < options_.clients; ++i) {
    error_code ec;
    tcp::endpoint peer;
    tcp::socket socket = acceptor_.accept(peer, ec);
    if (ec)
      continue; // the client has ended before
    const int descriptor = socket.release();
    const pid_t child = ::fork();
    if (child == 0)
      be_child(peer.protocol(), descriptor);
    ::close(descriptor);
    if (child < 0)
      throw system_error(error_code(errno, boost::system::system_category()), "fork");
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR)
      ;
  }
}

void server::be_child(const tcp& protocol, int descriptor) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The kernel ends a session that takes too long, wherever the process is.
  ::alarm(unsigned(options_.session) + 1);
  ::close(acceptor_.native_handle());
  try {
    asio::io_context io(1);
    client_session s(io, tcp::socket(io, protocol, descriptor), options_);
    asio::co_spawn(io, s.run(), [&](const std::exception_ptr&) { io.stop(); });
    io.run();
    std::_Exit(0); // no connection is ended gracefully: the client may be gone
  } catch (const std::exception& e) {
    std::fprintf(stderr, "asio_rdma-perf: %s\n", e.what());
  }
  std::_Exit(1);
}

} // namespace perf
