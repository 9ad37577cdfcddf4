// SPDX-License-Identifier: BSL-1.0
// Limits and capabilities of adapters.
#include "catch.hpp"
#include "device/adapters/adapter.hpp"
#include "device/adapters/link_scenes.hpp"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace test::adapter_limits_tests {

TEST_CASE("messages, streams and lent memory on an adapter that sends from few elements", "[h8]") {
  const int elements = GENERATE(1, 2, 3);
  CAPTURE(elements);
  const adapter a("plain,receive_elements=1,send_elements=" + std::to_string(elements));
  play_link_scenes();
}

TEST_CASE("a queue pair has more elements to send than to receive, if the device does", "[h8]") {
  const adapter a("erdma"); // reports one element
  queue_pair_options o;
  o.max_send_sge = o.max_receive_sge = 4;
  pair p(o);
  CHECK(p.dev.attributes().max_sge == 1);
  CHECK(p.a.options().max_send_sge == 4);
  CHECK(p.a.options().max_receive_sge == 1);
  sent s;
  got g;
  p.b.async_receive(p.mb.buffer(0, 16), g.handler());
  p.ma.put(0, "abcdefgh");
  p.a.async_send(std::array{p.ma.buffer(0, 3), p.ma.buffer(3, 5)}, s.handler());
  p.until([&] { return s.done() && g.done(); });
  CHECK(s.succeeded());
  CHECK(p.mb.text(0, 8) == "abcdefgh");
}

TEST_CASE("an adapter that reports memory windows and can allocate none has none", "[h7]") {
  const adapter a(GENERATE("irdma", "mlx5,fail=alloc_mw:all:eopnotsupp"));
  CHECK_FALSE(open_device().has_memory_windows());
  SECTION("messages") { send_messages(); }
  SECTION("lent memory") { lend_memory(); }
}

TEST_CASE("more receive elements than an adapter has become as many as it has", "[h8]") {
  const adapter a("erdma");
  queue_pair_options o;
  o.max_send_sge = o.max_receive_sge = 4;
  pair p(o);
  CHECK(p.a.options().max_receive_sge == 1);
  CHECK(p.carries("short"));
}

TEST_CASE("a queue pair has as much inline data as an adapter takes", "[h9]") {
  const auto [settings, most] =
      GENERATE(table<const char*, std::uint32_t>({{"mlx5", 400},
                                                  {"irdma", 96},
                                                  {"bnxt_re", 96},
                                                  {"erdma", 96},
                                                  {"plain,max_inline=48,send_elements=3", 48},
                                                  {"plain,max_inline=0,send_elements=1", 0}}));
  CAPTURE(settings);
  const adapter a(settings);
  queue_pair_options o;
  o.max_inline = 400;
  pair p(o);
  CHECK(p.a.options().max_inline == most);
  CHECK(p.b.options().max_inline == most); // the second one, which need not look for it
  CHECK(p.carries("inline or not"));
  o.max_inline = 40;
  pair few(o);
  CHECK(few.a.options().max_inline == std::min(most, 40u));
}

TEST_CASE("the queues of an adapter take its completion vectors in turn", "[h10]") {
  const adapter a("plain,vectors=3");
  const device dev = open_device();
  asio::io_context io(1);
  std::array<int, 3> of_vector{};
  std::vector<completion_queue> queues;
  for (int i = 0; i < 6; ++i) {
    queues.emplace_back(io, dev);
    ++of_vector.at(static_cast<std::size_t>(soft_get_vector(queues.back().native_handle())));
  }
  CHECK(of_vector == std::array{2, 2, 2});
  completion_queue_options o;
  o.completion_vector = 2;
  for (int i = 0; i < 2; ++i)
    CHECK(soft_get_vector(completion_queue(io, dev, o).native_handle()) == 2);
  o.completion_vector = 3;
  error_code ec;
  CHECK_FALSE(completion_queue(io, dev, o, ec).is_open());
  CHECK(ec == asio::error::invalid_argument);
}

TEST_CASE("a request above the adapter's longest message is refused, and nothing else fails",
          "[h15]") {
  const adapter a("mlx5,max_message=2097152"); // of the adapter 1 GiB
  const std::size_t most = 2 << 20;
  pair p;
  CHECK(p.dev.max_message_bytes() == most);
  std::vector<std::uint8_t> from = pattern(most + 1, 1), to(most + 1);
  const memory_region source(p.pd, from.data(), from.size(), access::local_write);
  const memory_region target(p.pd, to.data(), to.size(), all_rights);
  sent fits, over, read;
  p.a.async_write(source.buffer(0, most), target.remote(), fits.handler());
  p.a.async_write(std::array{source.buffer(0, most), source.buffer(most, 1)}, target.remote(),
                  over.handler());
  p.a.async_read(source.buffer(), target.remote(), read.handler());
  p.until([&] { return fits.done() && over.done() && read.done(); });
  CHECK(fits.succeeded());
  CHECK(over.ec == asio::error::message_size);
  CHECK(read.ec == asio::error::message_size);
  CHECK(is_pattern(to.data(), most, 1));
  CHECK(to.back() == 0);
  CHECK(p.carries("still"));
}

TEST_CASE("memory, messages and streams longer than an adapter's longest message", "[h15]") {
  const adapter a("plain,max_message=65536");
  constexpr std::size_t bytes = 2 * 65536 + 7; // three requests
  SECTION("a message") {
    talk t;
    send_message(t, bytes);
  }
  SECTION("a stream") {
    stream_pair p;
    const registered_buffer from = filled(p.pool, bytes, 1);
    std::vector<std::uint8_t> there(bytes);
    sent w, r;
    asio::async_write(p.a, from, w.handler());
    asio::async_read(p.b, asio::buffer(there), r.handler());
    p.until([&] { return w.done() && r.done(); });
    CHECK(w.succeeded());
    CHECK(is_pattern(there.data(), bytes, 1));
  }
  SECTION("memory of the peer") {
    lent_memory t(bytes);
    const auto text = pattern(bytes, 3);
    const registered_buffer owned = filled(t.pool, bytes, 4);
    const registered_buffer back = t.pool.allocate(bytes);
    std::vector<std::uint8_t> plain(bytes);
    sent written;
    outcome<std::uint32_t> word;
    SECTION("from plain memory, with a word for the peer behind it") {
      t.b.async_receive_immediate(word.handler());
      t.a.async_write(asio::buffer(text), t.target, 9u, written.handler());
      t.until([&] { return written.done() && word.done(); });
      CHECK(word.value == 9);
      CHECK(is_pattern(t.lent.data(), bytes, 3));
    }
    SECTION("from a registered buffer") {
      t.a.async_write(owned, t.target, written.handler());
      t.until([&] { return written.done(); });
      CHECK(is_pattern(t.lent.data(), bytes, 4));
    }
    SECTION("from several views") {
      const std::array parts{const_buffer(owned).first(bytes / 2), const_buffer(owned) + bytes / 2};
      t.a.async_write(parts, t.target, written.handler());
      t.until([&] { return written.done(); });
      CHECK(is_pattern(t.lent.data(), bytes, 4));
    }
    SECTION("to a registered buffer") {
      t.a.async_read(back, t.target, written.handler());
      t.until([&] { return written.done(); });
      CHECK(is_pattern(back.data(), bytes, 1));
    }
    SECTION("to plain memory in parts") {
      const std::array<asio::mutable_buffer, 2> parts{asio::buffer(plain.data(), bytes / 2),
                                                      asio::buffer(plain) + bytes / 2};
      t.a.async_read(parts, t.target, written.handler());
      t.until([&] { return written.done(); });
      CHECK(is_pattern(plain.data(), bytes, 1));
    }
    INFO(describe(written.ec));
    CHECK(written.succeeded());
    CHECK(written.value == bytes);
  }
}

TEST_CASE("a device without reliable connections says so", "[h19]") {
  const adapter a("efa");
  const device dev = open_device();
  const protection_domain pd(dev);
  asio::io_context io(1);
  queue_pair q(io);
  error_code ec;
  q.open(pd, {}, ec);
  CHECK(ec == asio::error::operation_not_supported);
  CHECK_FALSE(q.is_open());
}

TEST_CASE("shared receives are refused by an adapter without shared receive queues", "[h8]") {
  const std::string name = GENERATE("irdma", "erdma");
  CAPTURE(name);
  const adapter a(name);
  const device dev = open_device();
  const protection_domain pd(dev);
  asio::io_context io(1);
  shared_receive_queue q(io);
  error_code ec;
  q.open(pd, completion_queue(), {}, ec);
  CHECK(ec == asio::error::operation_not_supported);
}

TEST_CASE("atomic operations are refused by an adapter that has none", "[h16]") {
  const adapter a("irdma");
  pair p;
  outcome<std::uint64_t> r;
  p.a.async_fetch_add(p.mb.remote(0, 8), 1, r.handler());
  p.until([&] { return r.done(); });
  CHECK(r.ec == asio::error::operation_not_supported);
  CHECK(p.carries("still"));
}

} // namespace test::adapter_limits_tests
