// SPDX-License-Identifier: BSL-1.0
// Answers of a peer that nothing has asked for, or that come before the request.
#include "catch.hpp"
#include "device/global/global_rude.hpp"
#include "global/global_memory_impl.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace test::global_answers_tests {

TEST_CASE("memory for a cancelled request is given back once") {
  world w;
  rude r(w);
  r.join();
  outcome<remote_ptr<std::uint64_t>> cancelled;
  asio::cancellation_signal stop;
  w.host.async_allocate<std::uint64_t>(
      99, 0, 1, asio::bind_cancellation_slot(stop.slot(), cancelled.handler()));
  const auto request = r.hear();
  REQUIRE(request);
  stop.emit(asio::cancellation_type::total);
  w.until([&] { return cancelled.done(); });
  global_message answer = of(kind::allocated);
  answer.id = request->id;
  const auto give_back = [&] {
    r.say(answer);
    const auto back = r.hear();
    REQUIRE(back);
    CHECK(back->what == kind::free);
    CHECK(back->value == answer.value);
    return back->id;
  };
  SECTION("an answer to another request ends the connection") {
    ++answer.id;
    r.say(answer);
    CHECK(!r.hear());
  }
  SECTION("an answer to another kind of request ends the connection") {
    answer.what = kind::freed;
    r.say(answer);
    CHECK(!r.hear());
  }
  SECTION("a second answer ends the connection") {
    give_back();
    r.say(answer);
    CHECK(!r.hear());
  }
  SECTION("the answer to what is given back ends nothing") {
    answer.id = give_back();
    answer.what = kind::freed;
    r.say(answer);
    r.say(of(kind::allocate));
    CHECK(r.hear());
  }
}

TEST_CASE("answers that come before their requests are not taken without end") {
  constexpr std::size_t all = 200;
  const auto most = detail::global_memory_impl::most_unsent;
  world w;
  rude r(w);
  r.join();
  std::vector<outcome<remote_ptr<std::uint64_t>>> made(all);
  for (auto& m : made)
    w.host.async_allocate<std::uint64_t>(99, 0, 1, m.handler());
  // It guesses the numbers of the requests, and takes none of them: soon they are not sent.
  std::vector<sent> answers(all);
  for (std::uint32_t i = 0; i != all; ++i) {
    global_message answer = of(kind::allocated);
    answer.id = i + 1;
    r.link.async_send(asio::buffer(encode(answer)), answers[i].handler());
  }
  const auto ended = [&] {
    return static_cast<std::size_t>(
        std::count_if(made.begin(), made.end(), [](const auto& m) { return m.done(); }));
  };
  w.until([&] { return ended() >= most; });
  for (int i = 0; i < 1000; ++i)
    w.io.poll();
  CHECK(ended() <= most + 64); // as many have been sent at most as the peer has receives
  for (std::size_t heard = 0; heard != all; ++heard)
    REQUIRE(r.hear());
  w.until([&] { return ended() == all; });
}

TEST_CASE("much memory for a node is zeroed in pieces, and cannot be freed meanwhile") {
  constexpr std::size_t piece = detail::global_node::most_zeroed, pieces = 6;
  constexpr std::size_t bytes = (pieces - 1) * piece + 4096;
  const device dev = open_device();
  const memory_pool pool{protection_domain(dev)};
  asio::io_context io(1), of_host(1);
  global_memory host(of_host, pool, host_id), guest(io, pool, guest_id);
  host.host(2 * pieces * piece);
  host.listen({device_address(dev), 0});
  const auto both = [&](const std::function<bool()>& condition) {
    until({&io, &of_host}, condition);
  };
  outcome<node_id> joined;
  guest.async_join(host.local_endpoint(), joined.handler());
  both([&] { return joined.done(); });
  outcome<remote_ptr<std::uint8_t>> former, made;
  outcome<void> freed, not_freed;
  host.async_allocate<std::uint8_t>(host_id, 0, bytes, former.handler());
  both([&] { return former.done(); });
  REQUIRE(former.succeeded());
  std::uint8_t* const data = host.local(former.value);
  std::fill_n(data, bytes, std::uint8_t(0xff));
  host.async_free(former.value, freed.handler());
  both([&] { return freed.done(); });
  REQUIRE(freed.succeeded());

  guest.async_allocate<std::uint8_t>(host_id, 0, bytes, made.handler());
  const auto zeroed = [&] {
    std::size_t n = 0;
    for (std::size_t i = 0; i != pieces; ++i)
      n += data[i * piece] == 0;
    return n;
  };
  std::size_t before = 0;
  bool one_at_a_time = true, tried = false;
  until({&io}, [&] {
    of_host.poll_one();
    const std::size_t now = zeroed();
    one_at_a_time = one_at_a_time && now <= before + 1;
    before = now;
    if (now == 2 && !std::exchange(tried, true))
      host.async_free(former.value, not_freed.handler());
    return made.done();
  });
  CHECK(one_at_a_time);
  REQUIRE(made.succeeded());
  CHECK(made.value == former.value);
  CHECK(std::all_of(data, data + bytes, [](std::uint8_t b) { return b == 0; }));
  both([&] { return not_freed.done(); });
  CHECK(not_freed.ec);
  CHECK(freed.calls == 1);
  outcome<void> last;
  guest.async_free(made.value, last.handler());
  both([&] { return last.done(); });
  CHECK(last.succeeded());
}

TEST_CASE("a node gets descriptors of locks up to a limit, and others get them still") {
  world w;
  rude r(w), other(w);
  r.join();
  global_message m = of(kind::descriptors);
  m.value = 1;
  const auto ask = [&](rude& who) {
    who.say(m);
    const auto answer = who.hear();
    REQUIRE(answer);
    return answer->status;
  };
  for (std::size_t i = 0; i != detail::global_memory_impl::most_loans; ++i)
    REQUIRE(ask(r) == global_message::result::ok);
  CHECK(ask(r) == global_message::result::no_memory);
  global_message hello = rude::hello();
  hello.node = 98;
  other.say(hello);
  REQUIRE(other.hear());
  CHECK(ask(other) == global_message::result::ok);
}

} // namespace test::global_answers_tests
