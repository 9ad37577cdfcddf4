// SPDX-License-Identifier: BSL-1.0
#include "device/connecting/cm_support.hpp"

#include "catch.hpp"

#include <filesystem>

namespace test {

private_data bytes_of(std::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

std::string text_of(const private_data& data) {
  std::string result;
  for (const std::byte b : data)
    result += static_cast<char>(b);
  return result.substr(0, result.find_last_not_of('\0') + 1);
}

data_limits::data_limits(const device& d) {
  const bool iwarp = d.type() == transport::iwarp;
  request = iwarp ? 251 : 56;
  acceptance = iwarp ? 251 : 196;
  rejection = iwarp ? 251 : 148;
}

meeting::meeting(const queue_pair_options& of_a, const queue_pair_options& of_b, int backlog) {
  listener->open({device_address(dev), 0}, backlog);
  a.open(pd, of_a);
  b.open(pd, of_b);
}

void meeting::meet() {
  accept();
  connect();
  until([&] { return accepted.done() && connected.done(); });
  if (accepted.ec || connected.ec)
    throw system_error(accepted.ec ? accepted.ec : connected.ec, "connect");
}

bool meeting::carries(std::string_view text) {
  sent s;
  got r;
  ma.put(0, text);
  std::memset(mb.data(), 0, text.size());
  b.async_receive(mb.buffer(0, text.size()), r.handler());
  a.async_send(ma.buffer(0, text.size()), s.handler());
  until([&] { return s.done() && r.done(); });
  return s.succeeded() && r.succeeded() && mb.text(0, text.size()) == text;
}

void meeting::check_next_attempt(peer p) {
  if (p == peer::reached && dev.type() == transport::iwarp) {
    CHECK(a.state() == queue_pair_state::failed);
    a.close();
    a.open(pd);
  }
  CHECK(a.state() == queue_pair_state::open);
  accepted = connected = {};
  meet();
  CHECK(carries("the second attempt"));
}

// rdma_cm keeps every device open that it has used once (rdma_cm(7)), so the device is used before
// the resources are counted.
connections_check::connections_check() {
  { const meeting used; }
  check_.emplace();
}

int count_threads() {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    n += entry.is_directory() ? 1 : 0;
  return n;
}

} // namespace test
