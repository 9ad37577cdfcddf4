// SPDX-License-Identifier: BSL-1.0
#include "connecting/pending_handshakes.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace asio_rdma::detail {

asio::ip::address pending_handshakes::source_of(const asio::ip::address& connector) noexcept {
  if (!connector.is_v6())
    return connector;
  auto bytes = connector.to_v6().to_bytes();
  std::fill(bytes.begin() + bytes.size() / 2, bytes.end(), static_cast<unsigned char>(0));
  return asio::ip::address_v6(bytes);
}

std::optional<asio::ip::address>
pending_handshakes::busiest_source(std::vector<asio::ip::address> connectors,
                                   const asio::ip::address& newcomer) {
  std::vector<asio::ip::address> sources = std::move(connectors);
  std::transform(sources.begin(), sources.end(), sources.begin(), &source_of);
  std::ptrdiff_t most = std::count(sources.begin(), sources.end(), source_of(newcomer));
  if (2 * most >= static_cast<std::ptrdiff_t>(sources.size())) // as in a flood of one source
    return {};
  std::optional<asio::ip::address> result;
  std::sort(sources.begin(), sources.end());
  for (auto i = sources.begin(), next = i; i != sources.end(); i = next) {
    next = std::upper_bound(i, sources.end(), *i);
    if (next - i > most + 1) { // also with the newcomer's request
      most = next - i - 1;
      result = *i;
    }
  }
  return result;
}

void pending_handshakes::begin(const std::shared_ptr<cm_connection>& which,
                               const asio::ip::address& connector,
                               std::chrono::milliseconds timeout, clock::time_point now) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({which, which.get(), source_of(connector), now, timeout, confirmed_});
}

void pending_handshakes::end(const cm_connection& which) noexcept {
  const std::lock_guard lock(mutex_);
  entries_.remove_if([&](const entry& e) { return e.key == &which; });
}

void pending_handshakes::confirm(const cm_connection& which, clock::time_point now) noexcept {
  const std::lock_guard lock(mutex_);
  if (entries_.remove_if([&](const entry& e) { return e.key == &which; }) == 0)
    return; // it has given way
  ++confirmed_;
  last_confirmed_ = now;
}

void pending_handshakes::allow(clock::duration busy) noexcept {
  const std::lock_guard lock(mutex_);
  for (entry& e : entries_)
    e.since += busy;
}

std::size_t pending_handshakes::count() const noexcept {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t pending_handshakes::sources::count(const asio::ip::address& connector) const noexcept {
  const auto [first, last] = std::equal_range(all_.begin(), all_.end(), source_of(connector));
  return static_cast<std::size_t>(last - first);
}

pending_handshakes::sources pending_handshakes::by_source() const noexcept {
  sources result;
  try {
    const std::lock_guard lock(mutex_);
    result.all_.reserve(entries_.size());
    for (const entry& e : entries_)
      result.all_.push_back(e.source);
  } catch (const std::bad_alloc&) {
    return result;
  }
  std::sort(result.all_.begin(), result.all_.end());
  return result;
}

std::size_t pending_handshakes::locked_count(const asio::ip::address& source) const noexcept {
  return static_cast<std::size_t>(std::count_if(
      entries_.begin(), entries_.end(), [&](const entry& e) { return e.source == source; }));
}

// The more connectors compete, the less time each gets to answer.
pending_handshakes::overdue
pending_handshakes::take_overdue(clock::time_point now, std::size_t waiting,
                                 std::chrono::milliseconds patience) noexcept {
  overdue result{nullptr, clock::time_point::max()};
  const std::lock_guard lock(mutex_);
  const auto competitors = static_cast<std::chrono::milliseconds::rep>(entries_.size() + waiting);
  auto found = entries_.end();
  std::size_t most = 0;
  for (auto i = entries_.begin(); i != entries_.end(); ++i) {
    const bool passed_over = confirmed_ - i->confirmed_before >= generation;
    const auto silent_since = passed_over ? i->since : std::max(i->since, last_confirmed_);
    const auto due = silent_since + std::max(i->timeout / competitors, patience);
    if (due > now) {
      result.next = std::min(result.next, due);
    } else if (const std::size_t n = locked_count(i->source); n > most) {
      found = i;
      most = n;
    }
  }
  if (found == entries_.end())
    return result;
  result.which = found->which.lock();
  result.next = now;
  entries_.erase(found);
  return result;
}

bool ending_ids::crowded_sources::have(const asio::ip::address& connector) const noexcept {
  return !all_.empty() &&
         std::binary_search(all_.begin(), all_.end(), pending_handshakes::source_of(connector));
}

bool ending_ids::begin(const asio::ip::address& connector) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    const std::size_t n = ++sources_[pending_handshakes::source_of(connector)];
    counted_ += n <= most_ends_of_source ? 1 : 0;
    crowded_ += n == most_ends_of_source ? 1 : 0;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void ending_ids::end(const asio::ip::address& connector) noexcept {
  const std::lock_guard lock(mutex_);
  const auto i = sources_.find(pending_handshakes::source_of(connector));
  assert(i != sources_.end());
  const std::size_t n = i->second--;
  counted_ -= n <= most_ends_of_source ? 1 : 0;
  crowded_ -= n == most_ends_of_source ? 1 : 0;
  if (n == 1)
    sources_.erase(i);
}

ending_ids::crowded_sources ending_ids::crowded() const noexcept {
  crowded_sources result;
  if (crowded_ == 0) [[likely]]
    return result;
  try {
    const std::lock_guard lock(mutex_);
    result.all_.reserve(crowded_);
    for (const auto& [source, n] : sources_)
      if (n >= most_ends_of_source)
        result.all_.push_back(source);
  } catch (const std::bad_alloc&) {
  }
  return result;
}

// No connector has an address of the networks of IPv6 that have the numbers of IPv4 addresses.
std::uint64_t ending_ids::number_of(const asio::ip::address& connector) noexcept {
  if (connector.is_v4())
    return connector.to_v4().to_uint();
  const auto bytes = connector.to_v6().to_bytes();
  std::uint64_t result = 0;
  for (std::size_t i = 0; i != sizeof(result); ++i)
    result = result << 8 | bytes[i];
  return result;
}

} // namespace asio_rdma::detail
