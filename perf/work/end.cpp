// SPDX-License-Identifier: BSL-1.0
#include "end.hpp"

#include "../sizes.hpp"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <sstream>

namespace perf {

std::string to_text(const offer& o) {
  std::ostringstream out;
  out << o.where.address().to_string() << ' ' << o.where.port();
  for (const std::uint64_t n : o.numbers)
    out << ' ' << n;
  return out.str();
}

offer parse_offer(const std::string& text) {
  std::istringstream in(text);
  std::string address;
  std::uint16_t port = 0;
  offer result;
  in >> address >> port >> result.numbers[0] >> result.numbers[1] >> result.numbers[2];
  error_code ec;
  result.where = {asio::ip::make_address(address, ec), port};
  if (ec || in.fail())
    throw session_error("the other side does not say where it listens");
  return result;
}

void end::listen(listener* to) {
  to_ = to;
  if (to != nullptr && error_)
    to->failed(error_);
}

void end::fail(const error_code& ec) {
  if (error_)
    return;
  error_ = ec;
  if (to_ != nullptr)
    to_->failed(ec);
}

awaitable<void> end::close() {
  closed_ = true;
  to_ = nullptr;
  stop();
  while (handlers_ != 0) {
    error_code ec; // the cancellation of the timer
    co_await idle_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
  }
}

std::unique_ptr<near_end> make_near_end(const side& s, const request& r, const memory_limits& m) {
  switch (r.what) {
  case kind::send:
    return near_send(s, r, m);
  case kind::write:
  case kind::read:
    return near_one_sided(s, r, m);
  case kind::messages:
    return near_messages(s, r, m);
  default:
    return near_bytes(s, r, m);
  }
}

std::unique_ptr<far_end> make_far_end(const side& s, const request& r, const memory_limits& m) {
  switch (r.what) {
  case kind::send:
    return far_send(s, r, m);
  case kind::write:
  case kind::read:
    return far_one_sided(s, r, m);
  case kind::messages:
    return far_messages(s, r, m);
  default:
    return far_bytes(s, r, m);
  }
}

} // namespace perf
