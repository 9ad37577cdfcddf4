// SPDX-License-Identifier: BSL-1.0
// Sends and receives of messages that are cancelled at random times.
#include "catch.hpp"
#include "device/connection/cancelled_letters.hpp"
#include "device/connection/connection_support.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>

namespace test::connection_cancel_random_tests {
namespace {

/// Sends and receives, some of which are cancelled soon after their start.
class unsteady {
public:
  explicit unsteady(std::uint32_t seed) : random_(seed) {}

  void run() {
    for (int i = 0; i < 6; ++i) {
      send();
      receive();
    }
    t_.until([this] { return sends_over_ == count && receiving_ == 0; });
    // A message whose send succeeded has arrived; a cancelled one may have.
    for (std::uint32_t n = 0; n < count; ++n) {
      CAPTURE(n);
      CHECK((!succeeded_[n] || arrived_[n]));
    }
  }
  std::uint32_t wrong = 0, cancelled_sends = 0, cancelled_receives = 0, arrived = 0;
  std::size_t blocks() const { return t_.pool.statistics().blocks_in_use; }
  talk& both() { return t_; }

private:
  static constexpr std::uint32_t count = 1500;

  static std::size_t size_of(std::uint32_t n) {
    return 4 + (n % 5 == 4 ? n * 97 % 60'000 : n * 31 % 3000);
  }

  void sometime(asio::cancellation_signal& s) {
    if (random_() % 2 != 0)
      return s.emit(random_() % 2 == 0 ? asio::cancellation_type::partial
                                       : asio::cancellation_type::total);
    asio::post(t_.io, [this, &s] { sometime(s); });
  }

  void send() {
    if (next_ == count)
      return;
    const std::uint32_t n = next_++;
    letter& l = letters_.emplace_back(t_, static_cast<letter::kind>(random_() % 3), size_of(n), n);
    std::memcpy(l.plain.data(), &n, 4);
    std::memcpy(l.owned.data(), &n, 4);
    const auto h = [this, n, &l](error_code ec, std::size_t) {
      succeeded_[n] = !ec;
      cancelled_sends += ec ? 1u : 0u;
      wrong += ec && ec != asio::error::operation_aborted ? 1u : 0u;
      l.plain.clear();
      l.owned = {};
      ++sends_over_;
      send();
      if (sends_over_ == count)
        t_.a.async_close([](error_code) {});
    };
    auto bound = asio::bind_cancellation_slot(l.cancel.slot(), h);
    if (l.what == letter::kind::plain)
      t_.a.async_send(asio::buffer(l.plain), bound);
    else if (l.what == letter::kind::owned)
      t_.a.async_send(l.owned, bound);
    else
      t_.a.async_send(const_buffer(l.owned), bound);
    if (random_() % 3 == 0)
      sometime(l.cancel);
  }

  void receive() {
    ++receiving_;
    taker& k = takers_.emplace_back(t_, static_cast<taker::kind>(random_() % 4));
    const auto over = [this, &k](error_code ec, const void* data, std::size_t bytes) {
      --receiving_;
      if (ec) {
        ++cancelled_receives;
        wrong += ec != asio::error::operation_aborted && ec != asio::error::eof ? 1u : 0u;
      } else {
        take(static_cast<const std::uint8_t*>(data), bytes);
      }
      k.owned = {};
      k.plain.clear();
      if (ec != asio::error::eof)
        receive();
    };
    const auto slot = k.cancel.slot();
    const auto into = [over](const void* data) {
      return [over, data](error_code ec, std::size_t n) {
        over(ec, data, n);
      };
    };
    if (k.what == taker::kind::owning)
      t_.b.async_receive(asio::bind_cancellation_slot(
          slot, [over](error_code ec, const message& m) { over(ec, m.payload.data(), m.size()); }));
    else if (k.what == taker::kind::plain)
      t_.b.async_receive(asio::buffer(k.plain),
                         asio::bind_cancellation_slot(slot, into(k.plain.data())));
    else if (k.what == taker::kind::owned)
      t_.b.async_receive(k.owned, asio::bind_cancellation_slot(slot, into(k.owned.data())));
    else
      t_.b.async_receive(mutable_buffer(k.owned),
                         asio::bind_cancellation_slot(slot, into(k.owned.data())));
    if (random_() % 3 == 0)
      sometime(k.cancel);
  }

  void take(const std::uint8_t* data, std::size_t bytes) {
    std::uint32_t n = count;
    if (bytes >= 4)
      std::memcpy(&n, data, 4);
    const bool right = n < count && n >= expected_ && bytes == size_of(n) &&
                       std::equal(data + 4, data + bytes, pattern(bytes, n).begin() + 4);
    wrong += right ? 0u : 1u;
    if (!right)
      return;
    expected_ = n + 1;
    arrived_[n] = true;
    ++arrived;
  }

  std::mt19937 random_;
  talk t_;
  std::list<letter> letters_;
  std::list<taker> takers_;
  std::array<bool, count> succeeded_{}, arrived_{};
  std::uint32_t next_ = 0, sends_over_ = 0, receiving_ = 0, expected_ = 0;
};

} // namespace

TEST_CASE("messages arrive whole and in order, with any cancellations") {
  const auto seed = GENERATE(1u, 2u, 3u);
  CAPTURE(seed);
  unsteady u(seed);
  u.run();
  CHECK(u.wrong == 0);
  CHECK(u.cancelled_sends > 20);
  CHECK(u.cancelled_receives > 20);
  u.both().a.close();
  u.both().b.close();
  drain(u.both().io);
  CHECK(u.blocks() == 0); // though the signals still exist
}

} // namespace test::connection_cancel_random_tests
