// SPDX-License-Identifier: BSL-1.0
// Two sides of a stream over a link that loses nothing but has any delay, with all actions of
// programs in any order.
#include "protocol/stream_party.hpp"
#include "protocol/two_sides.hpp"

#include "catch.hpp"

namespace {

using namespace stream_test;

struct totals {
  std::size_t steps = 0, worlds = 0, bytes = 0, frames = 0, cancelled = 0, deaths = 0,
              shutdowns = 0, closes = 0, refused = 0, pulls = 0, withdrawn = 0, unexposed = 0,
              direct = 0, partly_lent = 0, asked = 0, progress = 0, dropped = 0, drops = 0,
              half_shut = 0, resized = 0, no_data = 0, writes_at_once = 0, reads_at_once = 0,
              copied_lent = 0;
};

class world : protocol_test::two_sides<party> {
public:
  explicit world(std::uint32_t seed, totals& t, bool reads = true)
      : two_sides(seed), total_(t), reads_(reads) {
    ++t.worlds;
    const std::uint32_t receives[2] = {5 + below(12), 5 + below(12)};
    const std::uint32_t sizes[2] = {64 + below(200), 64 + below(200)};
    for (std::size_t i = 0; i < 2; ++i) {
      frame_options l;
      l.receives = receives[i];
      l.peer_receives = receives[1 - i];
      l.receive_size = sizes[i];
      l.peer_receive_size = sizes[1 - i];
      l.max_receive_size = below(3) == 0 ? 0 : l.receive_size + below(1500);
      l.sends = 1 + below(8);
      l.speaks_first = i == 0;
      l.waits_for_peer = i == 1;
      stream_limits o{1 + below(6), 32 + below(1500), 32 + below(300)};
      o.at_once = below(2) * below(400);
      o.offer_from = 100 + below(600);
      o.offers = 1 + below(4);
      o.reads = reads;
      o.direct_from = 1 + below(400);
      o.inbox = {50 + below(2000), 20 + below(600)};
      parties_[i] = std::make_unique<party>(l, o, below(4) != 0);
      parties_[i]->refuses_memory = [this] {
        const bool refuses = below(64) == 0;
        total_.refused += refuses;
        return refuses;
      };
      parties_[i]->refuses_growth = [this] {
        return below(8) == 0;
      };
      parties_[i]->has_little_memory = [this] {
        return below(16) == 0;
      };
      parties_[i]->holds_back = [this] {
        return below(4) == 0;
      };
      parties_[i]->refuses_key = [this] {
        const bool refuses = below(16) == 0;
        total_.unexposed += refuses;
        return refuses;
      };
      parties_[i]->goes_straight = [this] {
        return below(4) != 0;
      };
      parties_[i]->read_at_a_time = 1 + below(500);
      parties_[i]->bytes.set_no_delay(below(4) == 0);
    }
  }

  void play(std::size_t steps) {
    for (std::size_t s = 0; s < steps; ++s) {
      ++total_.steps;
      step(below(2));
      check();
    }
    const std::uint32_t how = below(4);
    if (how == 0)
      die();
    else
      finish(how == 1);
    for (std::size_t i = 0; i < 2; ++i) {
      end_of(i);
      total_.bytes += taken_[i];
      total_.writes_at_once += parties_[i]->writes_at_once;
      total_.reads_at_once += parties_[i]->reads_at_once;
      total_.copied_lent += parties_[i]->copied_lent;
    }
  }

private:
  void step(std::size_t who) {
    party& p = *parties_[who];
    switch (below(12)) {
    case 0:
    case 1:
    case 2:
      deliver(who);
      break;
    case 3:
      if (below(3) == 0)
        p.idle(below(2) == 0);
      else
        p.complete_send();
      break;
    case 4:
      if (below(2) == 0)
        p.complete_send();
      else
        complete_pull(who);
      break;
    case 5:
    case 6:
    case 7:
      write(who);
      break;
    case 8:
    case 9:
      read(who);
      break;
    case 10:
      cancel(who);
      break;
    default:
      ask_or_shut(who);
    }
    collect(who);
  }

  void ask_or_shut(std::size_t who) {
    const std::uint32_t n = below(150);
    if (n < 15)
      ask(who);
    else if (n == 15)
      shut_writes(who);
    else if (n == 16)
      shut_reads(who);
    else if (n == 17) {
      shut_writes(who);
      shut_reads(who);
    }
  }

  void ask(std::size_t who) {
    parties_[who]->bytes.ask();
    parties_[who]->run();
  }

  void shut_writes(std::size_t who) {
    parties_[who]->bytes.shut_down_writes();
    parties_[who]->run();
    ++total_.shutdowns;
    total_.drops += !writes_shut_[who] && reads_shut_[who];
    writes_shut_[who] = true;
  }

  void shut_reads(std::size_t who) {
    parties_[who]->bytes.shut_down_reads();
    parties_[who]->run();
    total_.half_shut += !writes_shut_[who];
    total_.drops += writes_shut_[who] && !reads_shut_[who];
    reads_shut_[who] = true;
  }

  // Whether arriving bytes are dropped.
  bool drops(std::size_t who) const { return writes_shut_[who] && reads_shut_[who]; }

  bool complete_pull(std::size_t who) {
    party& p = *parties_[who];
    if (!p.pulls.empty()) {
      ++total_.pulls;
      total_.direct += p.pulls.front().read != nullptr;
    }
    return p.complete_pull(*parties_[1 - who]);
  }

  bool deliver(std::size_t who) override {
    if (const auto& wire = parties_[who]->wire; !wire.empty()) {
      const frame_header& h = wire.front().header;
      total_.frames += h.type == frame_type::data;
      total_.withdrawn += h.type == frame_type::withdrawn;
      total_.dropped += h.type == frame_type::dropped;
      total_.resized += h.type == frame_type::resized;
      total_.no_data += h.type == frame_type::no_data;
      asked_[who] += h.type == frame_type::query;
      if (h.type == frame_type::progress)
        hear_progress(1 - who, h.immediate);
    }
    return two_sides::deliver(who);
  }

  // Checks that the peer reports the number of bytes that its application has taken.
  void hear_progress(std::size_t who, std::uint32_t bytes) {
    ++told_[who];
    ++total_.asked;
    const std::size_t peer = 1 - who;
    must(told_[who] <= asked_[who], "there are no more answers than questions");
    must(bytes >= progress_[who], "the count of taken bytes does not decrease");
    must(bytes <= taken_[peer] + (read_[peer] ? read_[peer]->data.size() : 0),
         "an answer counts only bytes that were taken");
    total_.progress += bytes != progress_[who];
    progress_[who] = bytes;
  }

  // One write at a time, as in a program that needs the order: otherwise the next bytes would be
  // unknown.
  void write(std::size_t who) {
    if (write_[who] || write_end_[who])
      return;
    const auto kind = below(8) == 0                ? stream_write::kind::wait
                      : below(reads_ ? 4 : 2) == 0 ? stream_write::kind::lend
                                                   : stream_write::kind::copy;
    const std::uint64_t n = kind == stream_write::kind::wait ? 0
                            : below(2) == 0                  ? 1 + below(20)
                                                             : 1 + below(3000);
    write_[who] = std::make_unique<a_write>(n, kind);
    for (std::uint64_t i = 0; i < n; ++i)
      write_[who]->data.push_back(byte_at(given_[who] + i));
    parties_[who]->write(*write_[who]);
  }

  void read(std::size_t who) {
    if (read_[who] || read_end_[who])
      return;
    const auto kind = below(6) == 0   ? stream_read::kind::piece
                      : below(6) == 0 ? stream_read::kind::wait
                                      : stream_read::kind::copy;
    read_[who] = std::make_unique<a_read>(kind == stream_read::kind::piece
                                              ? ~std::uint64_t(0)
                                              : 1 + below(below(2) == 0 ? 400 : 3000),
                                          kind);
    read_[who]->direct = kind == stream_read::kind::copy && below(2) == 0;
    parties_[who]->read(*read_[who]);
  }

  void cancel(std::size_t who) {
    if (below(2) == 0 && write_[who])
      parties_[who]->cancel(*write_[who]);
    else if (read_[who])
      parties_[who]->cancel(*read_[who]);
  }

  void collect(std::size_t who) {
    if (auto& w = write_[who]; w && (w->ended || w->cancelled)) {
      total_.cancelled += w->cancelled || w->ec == asio::error::operation_aborted;
      total_.partly_lent +=
          w->what == stream_write::kind::lend && w->ec && w->done != 0 && w->done < w->bytes;
      must(!w->cancelled || w->done == 0, "a write that was cancelled at once has written nothing");
      if (w->what != stream_write::kind::wait)
        given_[who] += w->done;
      lost_[who] = lost_[who] || (w->ec && w->ec != asio::error::operation_aborted &&
                                  w->ec != asio::error::no_memory);
      write_end_[who] = write_end_[who] || lost_[who] || closing_;
      w.reset();
    }
    if (auto& r = read_[who]; r && (r->ended || r->cancelled)) {
      for (const std::byte b : r->data)
        must(b == byte_at(taken_[who]++), "bytes arrive in order and unchanged");
      const bool goes_on = (r->late && r->ec == asio::error::operation_aborted && !closing_) ||
                           r->ec == asio::error::no_memory ||
                           (reads_shut_[who] && !finishing_); // more may arrive
      if (r->ec && !goes_on)
        read_end_[who] = r->ec;
      r.reset();
    }
  }

  bool local_step(std::size_t who) override {
    const bool pulled = complete_pull(who);
    const bool moved = parties_[who]->idle() || pulled;
    collect(who);
    return moved;
  }

  // Both sides read to the end, which is a shutdown or a close.
  void finish(bool closes) {
    finishing_ = true;
    for (auto& p : parties_)
      p->refuses_memory = nullptr; // otherwise a read could end with that error before the end
    for (std::size_t i = 0; i < 2; ++i)
      if (reads_shut_[i] && !writes_shut_[i])
        shut_writes(i); // otherwise the peer would wait for a reader
    std::size_t rounds = 0;
    for (bool again = true; again;) {
      must(++rounds < 100'000, "the reads of both sides end");
      again = settle();
      for (std::size_t i = 0; i < 2; ++i) {
        read(i);
        collect(i);
      }
      again |= settle() || parties_[0]->bytes.readable() || parties_[1]->bytes.readable();
      again = again && !(read_end_[0] && read_end_[1]) && !all_read();
    }
    must(all_read() || read_end_[0] || read_end_[1], "all written bytes arrive");
    for (std::size_t i = 0; i < 2; ++i)
      must(!write_[i] || write_[i]->ended, "a write ends when all bytes were read");
    if (closes) {
      const std::size_t who = below(2);
      closing_ = true;
      parties_[who]->link.close();
      parties_[who]->run();
      ask(below(2));
      settle();
      must(parties_[0]->closed && parties_[1]->closed, "a goodbye is answered");
      ++total_.closes;
    } else {
      for (std::size_t i = 0; i < 2; ++i) {
        must(asked_[i] == told_[i], "each question is answered");
      }
      for (auto& p : parties_) {
        p->bytes.shut_down_writes();
        p->run();
      }
    }
    // Four rounds, as there may be four waits for a state, which do not report the end.
    for (int n = 0; n < 4 || (n < 1000 && !(read_end_[0] && read_end_[1])); ++n) {
      settle();
      for (std::size_t i = 0; i < 2; ++i) {
        read(i);
        collect(i);
      }
    }
    must(bool(read_end_[0]) && bool(read_end_[1]), "reads end with the stream");
    must(all_read(), "all written bytes arrive before the end");
  }

  bool all_read() const {
    for (std::size_t i = 0; i < 2; ++i)
      if ((drops(i) ? !read_end_[i] : given_[1 - i] != taken_[i]) || write_[i])
        return false;
    return true;
  }

  void die() {
    finishing_ = true;
    for (auto& p : parties_)
      p->stop(asio::error::connection_reset);
    ++total_.deaths;
    for (std::size_t i = 0; i < 2; ++i) {
      collect(i);
      must(!write_[i] && !read_[i], "everything ends with the link");
      while (!read_end_[i]) {
        read(i);
        collect(i);
      }
    }
  }

  void end_of(std::size_t i) {
    must(parties_[i]->link.flow().held() == 0, "no receive is held when all bytes were read");
    parties_[i]->stop(asio::error::operation_aborted);
    collect(i);
    must(!write_[i] && !read_[i], "nothing is left");
  }

  totals& total_;
  bool reads_; // otherwise no side may offer
  std::unique_ptr<a_write> write_[2];
  std::unique_ptr<a_read> read_[2];
  std::uint64_t given_[2] = {}, taken_[2] = {};
  error_code read_end_[2];
  bool write_end_[2] = {}, lost_[2] = {};
  bool writes_shut_[2] = {}, reads_shut_[2] = {};
  std::uint64_t asked_[2] = {}, told_[2] = {};
  std::uint32_t progress_[2] = {}; // of the peer's application
  bool closing_ = false, finishing_ = false;
};

// Lent writes go in frames. The end comes after 1 to 300 steps, so that it finds each state.
class world_of_frames final : world {
public:
  world_of_frames(std::uint32_t seed, totals& t) : world(seed, t, false), steps_(1 + seed % 300) {}

  void play(std::size_t most) { world::play(std::min(most, steps_)); }

private:
  std::size_t steps_;
};

// The worlds have met what those of each kind should meet.
void check_usual(const totals& t) {
  CHECK(t.bytes > t.steps);
  CHECK(t.cancelled > 0);
  CHECK(t.refused > 0);
  CHECK(t.partly_lent > 0);
  CHECK(t.drops > 0);
  CHECK(t.no_data > 0);
  CHECK(t.shutdowns > 0);
  CHECK(t.deaths > 0);
  CHECK(t.closes > 0);
}

} // namespace

TEST_CASE("two sides of a stream lose, double and change no byte") {
  const totals t = simulation::simulate<world, totals>(600'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds: " << t.bytes << " bytes read from "
               << t.frames << " frames, " << t.cancelled << " writes cancelled, " << t.refused
               << " times no memory, " << t.pulls << " READs, " << t.direct << " of them direct, "
               << t.withdrawn << " offers withdrawn, " << t.unexposed << " without a key, "
               << t.partly_lent << " lent writes that ended in the middle, " << t.asked
               << " questions answered, " << t.progress << " with progress, " << t.half_shut
               << " shutdowns of reads alone, " << t.drops << " both ways, " << t.dropped
               << " offers dropped, " << t.no_data << " notices of that, " << t.resized
               << " times larger receives, " << t.writes_at_once << " writes at once, "
               << t.reads_at_once << " reads at once, " << t.shutdowns << " shutdowns, " << t.deaths
               << " deaths, " << t.closes << " closes");
  check_usual(t);
  CHECK(t.pulls > t.direct);
  CHECK(t.direct > 0);
  CHECK(t.withdrawn > 0);
  CHECK(t.unexposed > 0);
  CHECK(t.asked > 0);
  CHECK(t.progress > 0);
  CHECK(t.dropped > 0);
  CHECK(t.resized > 0);
  CHECK(t.half_shut > 0);
  CHECK(t.writes_at_once > 0);
  CHECK(t.reads_at_once > 0);
}

TEST_CASE("two sides that offer nothing lose, double and change no byte of lent writes") {
  const totals t = simulation::simulate<world_of_frames, totals>(400'000);
  WARN(t.steps << " steps in " << t.worlds << " worlds: " << t.bytes << " bytes read from "
               << t.frames << " frames, " << t.cancelled << " writes cancelled, " << t.partly_lent
               << " lent writes that ended in the middle, " << t.copied_lent
               << " copies of lent bytes, " << t.refused << " times no memory, " << t.drops
               << " shutdowns both ways, " << t.no_data << " notices of that, " << t.shutdowns
               << " shutdowns, " << t.deaths << " deaths, " << t.closes << " closes");
  check_usual(t);
  CHECK(t.pulls == 0);
  CHECK(t.copied_lent > 0);
}
