// SPDX-License-Identifier: BSL-1.0
#include "client.hpp"

#include "control.hpp"
#include "progress.hpp"
#include "report/histogram.hpp"
#include "server.hpp"
#include "side.hpp"
#include "sizes.hpp"
#include "work/end.hpp"
#include "work/loops.hpp"

#include <asio_rdma/version.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <unistd.h>
#include <utility>

namespace perf {

namespace {

/// The server may be busy with another client.
constexpr double seconds_to_connect = 30;
/// The warm-up is a tenth of a measurement, at least one operation.
constexpr double warm_up = 0.1;

std::string version() {
  return std::to_string(ASIO_RDMA_VERSION_MAJOR) + '.' + std::to_string(ASIO_RDMA_VERSION_MINOR) +
         '.' + std::to_string(ASIO_RDMA_VERSION_PATCH);
}

/// A connected server.
class server_session {
public:
  server_session(asio::io_context& io, tcp::socket socket, const options& o)
      : io_(io), options_(o), control_(io, std::move(socket)) {}

  /// Exchanges greetings and facts with the server, and opens this side's device.
  awaitable<void> greet() {
    control_.allow(seconds_to_connect);
    co_await control_.tell(greeting);
    const std::string answer = co_await control_.hear(); // gcc 12 forgets it in a condition
    if (answer != greeting)
      throw session_error("another program, or another version, listens at this port");
    const std::string line = co_await control_.hear("facts");
    there_ = parse_facts(line);
    side_.emplace(io_, options_.device, control_.local_address());
  }
  awaitable<void> leave() {
    control_.allow(5);
    co_await control_.tell(std::string("bye"));
  }

  const facts& there() const noexcept { return there_; }
  facts here() const { return side_->describe(); }
  /// Whether the last measurement has left the session in order.
  bool is_usable() const noexcept { return usable_; }

  awaitable<void> measure(request r, row& to) {
    r.window = window_in_force(r, options_.memory);
    const std::unique_ptr<near_end> near = make_near_end(*side_, r, options_.memory);
    control_.allow(longest_time(r));
    std::exception_ptr failed;
    try {
      co_await measure(*near, r, to);
    } catch (...) {
      failed = std::current_exception();
    }
    co_await near->close();
    if (failed)
      std::rethrow_exception(failed);
  }

private:
  awaitable<void> measure(near_end& near, const request& r, row& to) {
    co_await control_.tell(to_line(r));
    const std::string ready = co_await control_.hear("ready"); // a refusal ends nothing
    usable_ = false;
    const offer far = parse_offer(ready);
    co_await control_.guard(near.connect(far), "connected");
    (void)co_await control_.hear("connected");
    if (r.of == metric::latency)
      to.latency = co_await measure_latency(near, r);
    else
      to.bandwidth = co_await measure_bandwidth(near, r);
    co_await control_.tell(std::string("end"));
    (void)co_await control_.hear("ended"); // the far side closes first, and so sees no failure
    usable_ = true;
  }

  awaitable<latency_figures> measure_latency(near_end& near, const request& r) {
    latency_loop l(io_, near);
    const auto h = std::make_unique<histogram>();
    co_await control_.guard(l.run(r.seconds * warm_up, *h));
    h->clear();
    co_await control_.guard(l.run(r.seconds, *h));
    co_return figures_of(*h, r.what);
  }

  // The network is empty at the begin and at the end of the measurement.
  awaitable<bandwidth_figures> measure_bandwidth(near_end& near, const request& r) {
    window_loop w(io_, near, r.window);
    bytes_ = 0;
    co_await run(w, near, r, r.seconds * warm_up);
    const auto begin = clock_type::now();
    co_await run(w, near, r, r.seconds);
    const double seconds = std::chrono::duration<double>(clock_type::now() - begin).count();
    co_return bandwidth_figures{w.operations(), seconds, r.window, r.size};
  }
  awaitable<void> run(window_loop& w, near_end& near, const request& r, double seconds) {
    co_await control_.guard(w.run(seconds));
    co_await control_.guard(near.settle());
    if (is_one_sided(r.what))
      co_return;
    bytes_ += w.operations() * r.size;
    co_await control_.tell("sync " + std::to_string(bytes_));
    (void)co_await control_.hear("done");
  }

  asio::io_context& io_;
  const options& options_;
  control control_;
  std::optional<side> side_;
  facts there_;
  std::uint64_t bytes_ = 0; // of the measurement
  bool usable_ = true;
};

awaitable<void> connect(tcp::socket& socket, const place& where, error_code& ec) {
  tcp::resolver resolver(socket.get_executor());
  const auto found = co_await resolver.async_resolve(where.host, where.port,
                                                     asio::redirect_error(asio::use_awaitable, ec));
  if (!ec)
    co_await asio::async_connect(socket, found, asio::redirect_error(asio::use_awaitable, ec));
}

awaitable<std::unique_ptr<server_session>> connect(asio::io_context& io, const options& o,
                                                   const place& where) {
  using namespace asio::experimental::awaitable_operators;
  tcp::socket socket(io);
  error_code ec = asio::error::timed_out;
  asio::steady_timer timer(io, to_duration(seconds_to_connect));
  const auto first = co_await (connect(socket, where, ec) || timer.async_wait(asio::use_awaitable));
  if (first.index() == 1)
    ec = asio::error::timed_out;
  if (ec)
    throw std::runtime_error("no server at " + where.host + ", TCP port " + where.port + ": " +
                             ec.message());
  auto result = std::make_unique<server_session>(io, std::move(socket), o);
  co_await result->greet();
  co_return result;
}

/// A row for each kind, mode and size. TCP has one mode.
std::vector<row> plan(const options& o) {
  std::vector<row> rows;
  for (const kind k : o.kinds)
    for (const mode m : o.modes)
      if (k != kind::tcp || m == o.modes.front())
        for (const std::uint64_t size : o.sizes)
          rows.push_back({k, k == kind::tcp ? mode::event : m, size, {}, {}, {}});
  return rows;
}

class client {
public:
  client(asio::io_context& io, const options& o, const place& where, results& to)
      : io_(io),
        options_(o),
        where_(where),
        to_(to),
        shown_(to.rows.size() * o.metrics.size(),
               o.progress.value_or(::isatty(STDERR_FILENO) != 0)) {}

  awaitable<void> run() {
    session_ = co_await connect(io_, options_, where_);
    to_.here = session_->here();
    to_.there = session_->there();
    for (row& each : to_.rows)
      for (const metric m : options_.metrics)
        co_await measure(m, each);
    if (session_)
      co_await session_->leave();
  }

private:
  awaitable<void> measure(metric m, row& to) {
    shown_.show(done_++, std::string(name(to.what)) + ' ' + std::string(name(to.how)) + ' ' +
                             size_text(to.size) + ' ' + std::string(name(m)));
    const request r{to.what, to.how, m, to.size, options_.window, options_.seconds};
    std::string why;
    try {
      if (!session_ && !gone_)
        session_ = co_await connect(io_, options_, where_);
      if (session_)
        co_await session_->measure(r, to);
      else
        why = "not measured";
    } catch (const std::exception& e) {
      why = e.what();
      gone_ = !session_; // no more attempts
    }
    if (session_ && !session_->is_usable())
      session_.reset();
    if (!why.empty())
      to.problem += (to.problem.empty() ? "" : "; ") + std::string(name(m)) + ": " + why;
  }

  asio::io_context& io_;
  const options& options_;
  const place& where_;
  results& to_;
  progress shown_;
  std::unique_ptr<server_session> session_;
  std::size_t done_ = 0;
  bool gone_ = false;
};

} // namespace

results run_client(const options& o, const place& where, int machines) {
  results r;
  r.version = version();
  r.machines = machines;
  r.seconds = o.seconds;
  r.rows = plan(o);
  asio::io_context io(1);
  client c(io, o, where, r);
  std::exception_ptr failed;
  bool over = false;
  asio::co_spawn(io, c.run(), [&](std::exception_ptr e) {
    failed = std::move(e);
    over = true;
  });
  while (!over && io.run_one() != 0)
    ;
  if (failed)
    std::rethrow_exception(failed);
  return r;
}

} // namespace perf
