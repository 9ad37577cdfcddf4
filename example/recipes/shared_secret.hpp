// SPDX-License-Identifier: BSL-1.0
// A connector proves with its request that it knows a secret, and the acceptor admits no other
// (accept_options::admit). The proof is an HMAC over a nonce and the time, of 32 bytes: as much as
// a request carries by RoCE. The acceptor refuses a proof that it has seen, and one that is too
// old.
//
// This keeps programs without the secret away from the memory, on a network that others may listen
// to but not change. It does not protect more:
// - Nothing is encrypted, and nothing that follows the request is authenticated. The proof is not
//   bound to the connection. So a party that can change packets, or hold them back, can take over
//   the request or the connection.
// - The acceptor proves nothing to the connector.
// - An acceptor does not know what another one has seen. Give each its own name, or the proof for
//   one is good for the other.
// - Anyone who listens can try secrets. Take 32 random bytes, not a password.
// - Clocks may differ by the window. If a connector's clock is ahead, its proofs from shortly
// before
//   a restart of the acceptor can be repeated after the restart.
// Where that is not enough, use TLS (asio::ssl::stream<asio_rdma::stream>), or exchange the
// addresses of queue pairs over TLS (async_exchange).
#pragma once

#include <asio_rdma/connect_options.hpp>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace shared_secret {

using clock = std::chrono::system_clock;
using milliseconds = std::chrono::milliseconds;

/// A secret for the connections to one acceptor, which has a name of its own, such as its address
/// and port as the connectors write them.
struct key {
  std::string secret; ///< At least 16 bytes, random.
  std::string acceptor;
};

struct proof {
  std::array<unsigned char, 8> time; ///< Milliseconds since 1970; the lowest byte first.
  std::array<unsigned char, 8> nonce;
  std::array<unsigned char, 16> tag; ///< The first half of HMAC-SHA256 (RFC 2104, section 5).
};

inline auto tag_of(const key& k, const proof& p) {
  if (k.secret.size() < 16)
    throw std::invalid_argument("the secret is too short");
  std::string text = "asio_rdma shared_secret 1 " + k.acceptor + '\0';
  text.append(p.time.begin(), p.time.end()).append(p.nonce.begin(), p.nonce.end());
  std::array<unsigned char, EVP_MAX_MD_SIZE> whole;
  if (!HMAC(EVP_sha256(), k.secret.data(), static_cast<int>(k.secret.size()),
            reinterpret_cast<const unsigned char*>(text.data()), text.size(), whole.data(),
            nullptr))
    throw std::runtime_error("HMAC");
  decltype(proof::tag) tag;
  std::copy_n(whole.begin(), tag.size(), tag.begin());
  return tag;
}

inline milliseconds since_1970(clock::time_point t) {
  return std::chrono::duration_cast<milliseconds>(t.time_since_epoch());
}

/// The data for one attempt to connect to one endpoint: `connect_options().set_data(prove(k))`. The
/// next attempt needs data of its own.
inline asio_rdma::private_data prove(const key& k, clock::time_point now = clock::now()) {
  proof p;
  const auto made = static_cast<std::uint64_t>(since_1970(now).count());
  for (std::size_t i = 0; i != p.time.size(); ++i)
    p.time[i] = static_cast<unsigned char>(made >> 8 * i);
  if (RAND_bytes(p.nonce.data(), static_cast<int>(p.nonce.size())) != 1)
    throw std::runtime_error("RAND_bytes");
  p.tag = tag_of(k, p);
  asio_rdma::private_data data(sizeof p);
  std::memcpy(data.data(), &p, sizeof p);
  return data;
}

// [gate]
/// The acceptor's side, for one acceptor: `accept_options().set_admit(std::ref(g))`. It must exist
/// until the acceptor is closed.
class gate {
public:
  /// Proofs from before `started`, which another process may have admitted, are refused.
  explicit gate(key k, milliseconds window = std::chrono::seconds(30),
                clock::time_point started = clock::now())
      : key_(std::move(k)), window_(window), oldest_(since_1970(started)) {
    tag_of(key_, {}); // throws if the secret is too short
  }

  bool operator()(std::span<const std::byte> data, const boost::asio::ip::tcp::endpoint&) {
    return admits(data, clock::now());
  }

  bool admits(std::span<const std::byte> data, clock::time_point time) {
    proof p;
    if (data.size() != sizeof p)
      return false;
    std::memcpy(&p, data.data(), sizeof p);
    const auto tag = tag_of(key_, p);
    if (CRYPTO_memcmp(tag.data(), p.tag.data(), tag.size()) != 0)
      return false; // nothing is remembered of a party that does not know the secret
    std::uint64_t bits = 0;
    for (std::size_t i = p.time.size(); i-- != 0;)
      bits = bits << 8 | p.time[i];
    const milliseconds made(static_cast<milliseconds::rep>(bits)), now = since_1970(time);
    oldest_ = std::max(oldest_, now - window_); // does not go back if the clock is set back
    seen_.erase(seen_.begin(), seen_.lower_bound({oldest_, {}}));
    return made >= oldest_ && made <= now + window_ && seen_.insert({made, p.nonce}).second;
  }

  std::size_t remembered() const { return seen_.size(); }

private:
  const key key_;
  const milliseconds window_;
  milliseconds oldest_; // of the proofs that are not refused for their time
  std::set<std::pair<milliseconds, decltype(proof::nonce)>> seen_;
};
// [gate]

} // namespace shared_secret
