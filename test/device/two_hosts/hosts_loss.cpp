// SPDX-License-Identifier: BSL-1.0
// Two hosts between which packets are lost: all data arrives once, whole and in order.
#include "catch.hpp"
#include "device/two_hosts/hosts_support.hpp"

#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace test::hosts_loss_tests {
namespace {

constexpr std::size_t block = 4096;
constexpr std::size_t slots = 16;

// The content of the block with this number of its kind.
std::string content(char kind, std::uint64_t number) {
  std::string result(block, '\0');
  std::uint64_t state = number * 1000003 + static_cast<unsigned char>(kind);
  for (char& c : result) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return result;
}

struct round {
  std::vector<std::size_t> received;
  std::size_t ended = 0;
  int failures = 0;
  std::string failure;
};

// SEND, WRITE and READ in one direction. The memory of each side has the source areas of the lane
// first, then the areas where the data arrives.
class lane {
  enum area : std::size_t { sends, writes, reads, arrivals, written, read };
  static std::size_t at(area a, std::size_t slot) { return (a * slots + slot) * block; }

  auto ended() {
    return [r = &*round_](error_code ec, std::size_t n) {
      ++r->ended;
      if (!ec && n == block)
        return;
      if (r->failures++ == 0)
        r->failure = describe(ec);
    };
  }

public:
  lane(queue_pair& from, memory& source, queue_pair& to, memory& sink)
      : from_(from), to_(to), source_(source), sink_(sink) {}

  void start() {
    round_.emplace();
    for (std::size_t i = 0; i < slots; ++i) {
      const std::uint64_t number = done_ + i;
      source_.put(at(sends, i), content('s', number));
      source_.put(at(writes, i), content('w', number));
      sink_.put(at(reads, i), content('r', number));
      to_.async_receive(sink_.buffer(at(arrivals, i), block),
                        [i, r = std::ref(*round_)](error_code ec, received what) {
                          r.get().received.push_back(i);
                          r.get().failures += ec || what.bytes != block ? 1 : 0;
                        });
      from_.async_write(source_.buffer(at(writes, i), block), sink_.remote(at(written, i), block),
                        ended());
      from_.async_read(source_.buffer(at(read, i), block), sink_.remote(at(reads, i), block),
                       ended());
      // Fenced between READs: rxe stops for ever when it repeats these.
      from_.async_send(source_.buffer(at(sends, i), block),
                       i % 2 == 0 ? queue_pair::flags::none : queue_pair::flags::fenced, ended());
    }
  }
  bool over() const { return round_->received.size() >= slots && round_->ended >= 3 * slots; }

  // On iWARP a write has arrived when a later SEND has arrived.
  void check() {
    INFO("first failure: " << round_->failure);
    REQUIRE(round_->failures == 0);
    REQUIRE(round_->ended == 3 * slots);
    REQUIRE(round_->received.size() == slots);
    for (std::size_t i = 0; i < slots; ++i) {
      const std::uint64_t number = done_ + i;
      CHECK(round_->received[i] == i);
      CHECK((sink_.text(at(arrivals, i), block) == content('s', number)));
      CHECK((sink_.text(at(written, i), block) == content('w', number)));
      CHECK((source_.text(at(read, i), block) == content('r', number)));
    }
    done_ += slots;
  }

private:
  queue_pair &from_, &to_;
  memory &source_, &sink_;
  std::optional<round> round_;
  std::uint64_t done_ = 0;
};

} // namespace

TEST_CASE("bytes arrive once, whole and in order, however many packets are lost") {
  const int percent = GENERATE(1, 5);
  queue_pair_options quick;
  quick.timeout = 14; // rxe notices the loss of a last packet by it
  two_hosts h(quick);
  const std::size_t size = 6 * slots * block;
  memory forth1(h.pd1, size, all_rights), forth2(h.pd2, size, all_rights);
  memory back1(h.pd1, size, all_rights), back2(h.pd2, size, all_rights);
  lane forth(h.q1, forth1, h.q2, forth2), back(h.q2, back2, h.q1, back1);
  const loss of1(1, percent), of2(2, percent);
  int rounds = 0;
  while (rounds < 4 || of1.packets() < 5 || of2.packets() < 5) {
    INFO("round " << ++rounds);
    forth.start();
    back.start();
    h.until([&] { return forth.over() && back.over(); });
    forth.check();
    back.check();
  }
  CHECK(h.q1.state() == queue_pair_state::connected);
  CHECK(h.q2.state() == queue_pair_state::connected);
}

} // namespace test::hosts_loss_tests
