// SPDX-License-Identifier: BSL-1.0
#include "control.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <utility>

namespace perf {

namespace {

// The other branch of `||` is cancelled only when a branch returns, so none may throw.
awaitable<std::exception_ptr> caught(awaitable<void> what) {
  try {
    co_await std::move(what);
  } catch (...) {
    co_return std::current_exception();
  }
  co_return nullptr;
}

} // namespace

control::control(asio::io_context& io, tcp::socket socket)
    : socket_(std::move(socket)), deadline_(io), self_(std::make_shared<control*>(this)) {
  error_code ec; // a connection that has ended is noticed by the first step
  socket_.set_option(tcp::no_delay(true), ec);
  socket_.non_blocking(true, ec); // for `watch`
}

void control::allow(double seconds) {
  deadline_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds)));
  deadline_.async_wait([weak = std::weak_ptr(self_), seconds](error_code ec) {
    if (const auto self = weak.lock(); self && !ec)
      (*self)->end("it has not ended within " + std::to_string(int(seconds)) + " s");
  });
}

void control::end(const std::string& reason) {
  if (reason_.empty())
    reason_ = reason;
  error_code ec;
  socket_.close(ec);
}

void control::interrupt() {
  interrupted_ = true;
  error_code ec;
  socket_.cancel(ec);
}

void control::fail(const error_code& ec) const {
  if (!reason_.empty())
    throw session_error(reason_);
  if (interrupted_)
    throw session_error("the connection of the measurement has ended");
  if (ec == asio::error::eof || ec == asio::error::connection_reset ||
      ec == asio::error::broken_pipe)
    throw session_error("the other side has ended");
  if (ec == asio::error::not_found)
    throw session_error("the other side has sent a line that is too long");
  throw session_error("the connection to the other side: " + ec.message());
}

awaitable<void> control::tell(std::string line) {
  line += '\n';
  error_code ec;
  co_await asio::async_write(socket_, asio::buffer(line),
                             asio::redirect_error(asio::use_awaitable, ec));
  if (ec)
    fail(ec);
}

awaitable<std::string> control::hear() {
  error_code ec;
  const std::size_t n =
      co_await asio::async_read_until(socket_, asio::dynamic_buffer(received_, longest_line), '\n',
                                      asio::redirect_error(asio::use_awaitable, ec));
  if (ec)
    fail(ec);
  std::string line = received_.substr(0, n - 1);
  received_.erase(0, n);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c != '\t' && (c < ' ' || c > '~'); }, '?');
  constexpr std::string_view refused = "refused ";
  if (line.starts_with(refused))
    throw refusal("the other side: " + line.substr(refused.size()));
  co_return line;
}

awaitable<std::string> control::hear(std::string_view word) {
  const std::string line = co_await hear();
  if (line == word)
    co_return std::string();
  if (!line.starts_with(std::string(word) + ' '))
    throw session_error("the other side has sent another line than '" + std::string(word) + "'");
  co_return line.substr(word.size() + 1);
}

awaitable<void> control::watch(std::string_view allowed) {
  for (;;) {
    std::string_view rest = received_;
    if (!allowed.empty() && rest.starts_with(std::string(allowed) + '\n'))
      rest.remove_prefix(allowed.size() + 1);
    const std::size_t room = longest_line - std::min(longest_line, received_.size());
    if (rest.find('\n') != std::string_view::npos || room == 0)
      co_return;
    error_code ec;
    co_await socket_.async_wait(tcp::socket::wait_read,
                                asio::redirect_error(asio::use_awaitable, ec));
    if (ec)
      co_return;
    std::array<char, longest_line> bytes;
    const std::size_t n = socket_.read_some(asio::buffer(bytes, room), lost_);
    if (lost_ == asio::error::would_block)
      lost_ = {};
    if (lost_)
      co_return;
    received_.append(bytes.data(), n);
  }
}

awaitable<void> control::guard(awaitable<void> what, std::string_view allowed) {
  using namespace asio::experimental::awaitable_operators;
  const auto first = co_await (caught(std::move(what)) || caught(watch(allowed)));
  if (first.index() == 0) {
    const std::exception_ptr failed = std::get<0>(first);
    if (failed)
      std::rethrow_exception(failed);
    co_return;
  }
  if (!reason_.empty() || interrupted_ || lost_)
    fail(lost_);
  std::string line;
  do
    line = co_await hear(); // throws a refusal
  while (line == allowed);
  throw session_error("the other side has sent an unexpected line");
}

asio::ip::address control::local_address() const {
  error_code ec;
  return plain(socket_.local_endpoint(ec).address());
}
asio::ip::address control::peer_address() const {
  error_code ec;
  return plain(socket_.remote_endpoint(ec).address());
}

asio::ip::address plain(const asio::ip::address& a) {
  if (a.is_v6() && a.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, a.to_v6());
  return a;
}

} // namespace perf
