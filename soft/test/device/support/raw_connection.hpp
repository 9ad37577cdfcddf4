// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_TEST_DEVICE_RAW_CONNECTION_HPP
#define SOFT_TEST_DEVICE_RAW_CONNECTION_HPP

#include "support/fixture.hpp"
#include "support/processes.hpp"
#include "support/raw_peer.hpp"

#include <exception>
#include <optional>
#include <thread>
#include <unistd.h>
#include <vector>

namespace soft::test {

/// A request as siw's: no CRCs, no peer-to-peer mode, 4 READs each way. `data`: bytes of private
/// data.
iwarp::start_frame request_of(std::size_t data = 0);

/// A connection that a raw peer begins, with memory that the peer may write and read.
struct accepted {
  endpoint listener, e;
  std::optional<raw_peer> peer;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  owned_mr mr, closed; ///< `closed`: without rights of the peer

  /// `first`: bytes that follow the request. `segment`: bytes of a TCP segment; 0: as it comes.
  explicit accepted(std::span<const std::byte> first = {}, int segment = 0);
  ~accepted();
  void accept();
  void receive(std::size_t size);
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory.data()); }
};

/// A queue pair that is connected to a raw peer, which answers `ird` READs at a time.
struct connected_to_raw {
  explicit connected_to_raw(std::uint16_t ird);
  /// Posts READs 1 to `n` at once.
  void read(std::size_t n);
  owned_context context;
  side s;
  std::optional<raw_peer> peer;
};

/// Connects to a raw peer, whose part runs in another thread: the result of rdma_connect(3).
template <class Part>
int connect_to(const Part& part, endpoint& e) {
  const auto [listening, port] = listen_raw();
  std::exception_ptr failure;
  std::thread other([&, l = listening] {
    try {
      raw_peer peer(l);
      part(peer);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  resolve(e, port);
  const int result = connect(e);
  other.join();
  close(listening);
  if (failure)
    std::rethrow_exception(failure);
  return result;
}

} // namespace soft::test

#endif
