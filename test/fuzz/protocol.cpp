// SPDX-License-Identifier: BSL-1.0
// All code that reads a peer's bytes, with bytes from the fuzzer: the handshake, its verdict and
// steps, the messages of a global memory's nodes, and a whole party, of messages or of a stream.
// The party's peer sends anything, while its own application, driver and device do anything.
#include "../protocol/lies.hpp"
#include "connecting/handshake.hpp"
#include "core/little_endian.hpp"

#include <asio_rdma/detail/global/global_message.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace {

using namespace protocol_test;

class input {
public:
  explicit input(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty())
      return 0;
    const auto result = std::to_integer<std::uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return result;
  }
  std::span<const std::byte> some(std::size_t n) {
    const auto result = bytes_.first(std::min(n, bytes_.size()));
    bytes_ = bytes_.subspan(result.size());
    return result;
  }
  std::span<const std::byte> rest() { return some(bytes_.size()); }
  std::uint32_t below(std::uint32_t n) {
    if (n < 2)
      return 0;
    const std::uint32_t low = byte();
    return (n > 256 ? low | std::uint32_t(byte()) << 8 : low) % n;
  }

private:
  std::span<const std::byte> bytes_;
};

void handshakes(input in) {
  const auto bytes = in.rest();
  handshake h;
  if (!decode(bytes, h)) {
    handshake again;
    must(!decode(std::span<const std::byte>(encode(h)).first(h.size()), again),
         "a handshake that was read can be written");
    if (!h.address) {
      const auto record = encode(h);
      const auto data = program_data(bytes);
      must(std::ranges::equal(
               program_data(with_data({record.begin(), record.begin() + std::ptrdiff_t(h.size())},
                                      data.first(std::min(data.size(), handshake::most_data)))),
               data.first(std::min(data.size(), handshake::most_data))),
           "data of the program that were read can be written");
    }
  }
  if (bytes.size() >= verdict_size) {
    verdict v{};
    (void)decode(bytes.first<verdict_size>(), v);
  }
}

void global_messages(input in) {
  const auto bytes = in.rest();
  global_message m;
  if (decode(bytes, m))
    must(std::ranges::equal(encode(m), bytes), "a message that was read is the one that was sent");
}

void exchange(input in) {
  handshake local;
  local.what = static_cast<handshake::kind>(in.below(3));
  if (in.byte() % 2 == 0) {
    local.address.emplace();
    local.address->address.number = 17;
    local.address->address.lid = 1;
  }
  exchange_steps steps(local);
  while (steps.next() != exchange_steps::action::finish) {
    if (steps.next() == exchange_steps::action::write) {
      must(steps.output().size() != 0, "there is something to write");
      steps.on_written(in.byte() == 255 ? error_code(asio::error::eof) : error_code());
    } else if (steps.next() == exchange_steps::action::connect) {
      (void)steps.peer();
      steps.on_connected(in.byte() == 255 ? error_code(asio::error::eof) : error_code());
    } else {
      const asio::mutable_buffer to = steps.input();
      must(to.size() != 0, "there is room to read to");
      const auto bytes = in.some(std::min<std::size_t>(to.size(), 1U + in.byte()));
      std::memcpy(to.data(), bytes.data(), bytes.size());
      steps.on_read(bytes.empty() ? error_code(asio::error::eof) : error_code(), bytes.size());
    }
  }
}

void conversation(input in) {
  frame_options l;
  l.receives = 5 + in.below(8);
  const std::uint32_t said = in.below(256); // in the peer's handshake
  l.peer_receives = said < 240 ? 5 + said % 8 : said < 248 ? said % 8 : 0xffff - said % 8;
  l.receive_size = l.peer_receive_size = 128;
  l.sends = 1 + in.below(4);
  if (!frame_link::usable(l))
    return;
  message_options m;
  m.limit = 2500;
  m.offers = 1 + in.below(4);
  m.pulls = 1 + in.below(3);
  m.gather = 112;
  m.small = 40;
  l.promise = in.below(4) / 2 * 5; // in half of the conversations the receives are shared
  grant_limits g;
  g.rights = remote_rights::all;
  g.bytes = 2000;
  g.grants = 1 + in.below(4);
  party p(l, m, g);
  p.honest_peer = false;
  const chooser pick = [&](std::uint32_t n) {
    return in.below(n);
  };
  while (!in.empty() && !p.failure) {
    switch (in.below(8)) {
    case 0:
    case 1:
    case 2:
      (void)p.arrives(a_frame(in, p));
      break;
    case 3:
      (void)p.arrives(in.some(in.below(128)));
      break;
    case 4:
      p.complete_send();
      break;
    case 5:
      p.local_step(pick);
      break;
    case 6:
      if (in.below(16) == 0)
        p.link.close();
      p.pass_time(std::chrono::microseconds(in.below(200)));
      if (p.shared) {
        p.shared->act(pick);
        p.run();
      }
      break;
    default:
      p.act(pick);
    }
    if (!p.failure && p.shared)
      must(p.shared->shares.given() == p.link.flow().share() + p.shared->rival,
           "shared receives are the link's, a rival's, or unclaimed");
    // Limits of the memory and the requests that a peer can make this side keep.
    must(p.pulls.size() <= m.pulls, "outstanding READs keep to the limit");
    must(p.link.flow().held() <= l.receives, "held receives are no more than the posted ones");
    must(p.grants.bytes() <= g.bytes && p.grants.grants() <= g.grants, "grants keep to the limits");
  }
  p.die(asio::error::connection_reset);
}

void stream_conversation(input in) {
  frame_options l;
  l.receives = 5 + in.below(8);
  l.peer_receives = 5 + in.below(8);
  l.receive_size = l.peer_receive_size = 80;
  l.max_receive_size = 400;
  l.sends = 1 + in.below(4);
  stream_limits o{1 + in.below(4), 300, 100};
  o.offer_from = 100;
  o.offers = 1 + in.below(3);
  o.direct_from = 50;
  o.inbox = {400, 150};
  stream_test::party p(l, o);
  p.refuses_key = p.refuses_memory = p.has_little_memory = p.refuses_growth = [&] {
    return in.below(16) == 15;
  };
  std::uint32_t offers = 0; // offers of the peer
  std::deque<stream_test::a_write> writes;
  std::deque<stream_test::a_read> reads;
  const auto write = [&] {
    const std::uint32_t bytes = 1 + in.below(700); // arguments are evaluated in any order
    auto& w = writes.emplace_back(bytes, static_cast<stream_write::kind>(in.below(3)));
    w.data.resize(w.bytes);
    p.write(w);
  };
  const auto read = [&] {
    const std::uint32_t bytes = 1 + in.below(700);
    auto& r = reads.emplace_back(bytes, static_cast<stream_read::kind>(in.below(3)));
    r.direct = r.what == stream_read::kind::copy && in.below(2) == 0;
    p.read(r);
  };
  while (!in.empty() && !p.failure) {
    switch (in.below(10)) {
    case 0:
    case 1:
    case 2:
      if (!p.posted.empty())
        p.arrives(a_stream_frame(in, p, offers));
      break;
    case 3:
      if (const auto bytes = in.some(in.below(80)); !p.posted.empty())
        p.arrives(bytes);
      break;
    case 4:
      p.complete_send();
      p.idle();
      break;
    case 5:
      p.complete_pull();
      break;
    case 6:
      write();
      break;
    case 7:
      read();
      break;
    case 8:
      if (in.below(2) == 0 && !writes.empty())
        p.cancel(writes[in.below(static_cast<std::uint32_t>(writes.size()))]);
      else if (!reads.empty())
        p.cancel(reads[in.below(static_cast<std::uint32_t>(reads.size()))]);
      break;
    default:
      if (const std::uint32_t what = in.below(32); what == 0)
        p.link.close();
      else if (what == 1)
        p.bytes.shut_down_writes();
      else if (what == 2)
        p.bytes.shut_down_reads();
      else if (what < 5)
        p.bytes.set_no_delay(what == 3);
      p.run();
    }
    std::uint64_t ahead = 0;
    for (const auto& [index, bytes] : p.chunks)
      ahead += bytes.size();
    must(ahead <= o.inbox.read_ahead, "bytes that are read ahead keep to the limit");
    must(p.link.flow().held() <= l.receives, "held receives are no more than the posted ones");
  }
  p.refuses_key = p.refuses_memory = p.has_little_memory = nullptr;
  p.stop(asio::error::connection_reset);
  while (p.bytes.available() != 0)
    p.read(reads.emplace_back(1000));
  for (const auto& w : writes)
    must(w.ended || w.cancelled, "every write ends when the link has stopped");
  for (const auto& r : reads)
    must(r.ended || r.cancelled, "every read ends when the link has stopped");
  must(p.keys.empty() && p.blocks.empty() && p.chunks.empty(), "nothing is kept");
  must(p.failure || p.link.flow().held() == 0, "nothing is held");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in(std::as_bytes(std::span(data, size)));
  const std::uint8_t what = in.byte();
  if (what >= 0xf0) {
    global_messages(in);
    return 0;
  }
  switch (what % 4) {
  case 0:
    handshakes(in);
    break;
  case 1:
    exchange(in);
    break;
  case 2:
    conversation(in);
    break;
  default:
    stream_conversation(in);
  }
  return 0;
}
