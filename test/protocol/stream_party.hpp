// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "fake_link.hpp"
#include "streams/stream_protocol.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace stream_test {

using namespace asio_rdma;
using namespace asio_rdma::detail;
using protocol_test::fake_link, protocol_test::frame_of, protocol_test::wire_frame;
using simulation::must;

/// The byte at a position of a stream.
inline std::byte byte_at(std::uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u) >> 13 & 0xff);
}

struct a_write final : stream_write {
  explicit a_write(std::uint64_t n, kind k = kind::copy) {
    bytes = k == kind::wait ? 1 : n;
    what = k;
  }
  std::vector<std::byte> data;
  bool ended = false, cancelled = false;
};

struct a_read final : stream_read {
  explicit a_read(std::uint64_t n, kind k = kind::copy) {
    capacity = n;
    what = k;
  }
  std::vector<std::byte> data;
  std::vector<std::byte> memory;                       // the device writes to it
  bool ended = false, cancelled = false, late = false; // late: cancelled, but not at once
};

/// A READ of the peer's memory.
struct a_pull {
  stream_chunk* chunk;
  a_read* read;
  remote_buffer from;
};

/// One side of a stream.
class party final : public fake_link {
public:
  party(const frame_options& l, const stream_limits& o, bool knows_rounds = true)
      : fake_link(l), bytes(link, o, knows_rounds ? &rounds : nullptr) {
    run();
  }

  tally rounds;
  stream_protocol bytes;

  std::map<std::uint32_t, std::vector<std::byte>> blocks;
  std::map<std::uint32_t, std::vector<std::byte>> chunks;
  std::map<std::uint32_t, std::span<const std::byte>> keys; // for the peer's READs
  std::map<const stream_write*, std::uint32_t> key_of;
  std::uint32_t next_key = 1;
  std::deque<a_pull> pulls;                // READs to complete
  std::function<bool()> refuses_memory;    ///< For a block, or for a chunk.
  std::function<bool()> has_little_memory; ///< For a chunk, which then is smaller.
  std::function<bool()> holds_back;        ///< Whether there is memory for one chunk only.
  std::function<bool()> refuses_key;
  bool awaits_idle = false;
  std::function<bool()> goes_straight; ///< Whether an operation tries to run at once.
  std::size_t writes_at_once = 0, reads_at_once = 0;
  std::size_t copied_lent = 0; ///< Copies to blocks of lent bytes.
  /// For direct reads: no more bytes than this are requested at a time.
  std::uint64_t read_at_a_time = ~std::uint64_t(0);

  /// Completes the oldest READ.
  bool complete_pull(party& from) {
    if (pulls.empty())
      return false;
    const a_pull p = pulls.front();
    pulls.pop_front();
    const auto key = from.keys.find(p.from.rkey);
    must(key != from.keys.end(), "a READ has a key that the peer has exposed");
    const std::uint64_t at = p.from.address - (std::uint64_t(p.from.rkey) << 32);
    must(at + p.from.size <= key->second.size(), "a READ is within the exposed memory");
    read_ended(p, key->second.subspan(at, p.from.size));
    return true;
  }
  /// Completes the oldest READ, without a peer.
  bool complete_pull() {
    if (pulls.empty())
      return false;
    const a_pull p = pulls.front();
    pulls.pop_front();
    read_ended(p, std::vector<std::byte>(p.from.size));
    return true;
  }
  /// The handlers that were ready have run, so a round ends. If `quiet`, nothing else was ready.
  /// Returns false if the protocol does not wait for that.
  bool idle(bool quiet = false) {
    rounds.add();
    if (!awaits_idle)
      return false;
    awaits_idle = false;
    bytes.on_idle(quiet);
    run();
    return true;
  }
  void stop(const error_code& why) {
    pulls.clear();
    fake_link::stop(why);
  }

  void write(a_write& op) {
    if (!write_at_once(op))
      bytes.write(op);
    run();
  }
  void read(a_read& op) {
    if (!read_at_once(op))
      bytes.read(op);
    run();
  }
  void cancel(a_write& op) {
    if (op.ended || op.cancelled)
      return;
    op.cancelled = bytes.cancel(op);
    if (op.cancelled)
      end_key(op);
    run();
  }
  void cancel(a_read& op) {
    if (op.ended || op.cancelled)
      return;
    op.cancelled = bytes.cancel(op);
    op.late = !op.cancelled;
    must(op.data.empty(), "a cancelled read has taken nothing");
    run();
  }

private:
  bool write_at_once(a_write& op) {
    if (op.what != stream_write::kind::copy || (goes_straight && !goes_straight()))
      return false;
    const link_action a = bytes.write_at_once(op);
    if (a.what == link_action::kind::none)
      return false;
    must(a.what == link_action::kind::send && op.done == op.bytes && !op.ec,
         "a write that is sent at once is complete");
    send(a);
    op.ended = true;
    ++writes_at_once;
    return true;
  }

  bool read_at_once(a_read& op) {
    if (goes_straight && !goes_straight())
      return false;
    stream_action a;
    while (bytes.read_at_once(op, a)) {
      take(a);
      a = {};
    }
    op.ended = op.done != 0;
    reads_at_once += op.ended;
    must(op.data.size() == op.done && (!op.ended || !op.ec), "a read at once has its bytes");
    return op.ended;
  }

  void take(const stream_action& a) {
    auto& op = static_cast<a_read&>(*a.read);
    const auto& from = a.chunk != nullptr ? chunks.at(a.chunk->index) : filled.at(a.slot);
    const std::size_t at = a.chunk != nullptr ? a.at : frame_header::size + a.at;
    must(at + a.bytes <= from.size(), "the bytes that are taken have arrived");
    must(op.data.size() == a.offset, "bytes are appended to those that were taken before");
    const auto begin = from.begin() + std::ptrdiff_t(at);
    op.data.insert(op.data.end(), begin, begin + std::ptrdiff_t(a.bytes));
    must(a.emptied == (at + a.bytes == from.size()), "a receive is given back when it is empty");
    if (a.emptied && a.chunk == nullptr)
      link.release(a.slot);
  }

  void end(a_read& op) {
    must(!op.ended && !op.cancelled, "a read ends once");
    if (op.done != 0 && op.data.empty())
      op.data = op.memory;
    must(op.data.size() == op.done, "a read has as many bytes as it reports");
    must(!op.late || !op.ec || op.done == 0, "a cancelled read has taken nothing");
    op.ended = true;
  }

  void read_ended(const a_pull& p, std::span<const std::byte> there) {
    if (p.read != nullptr) {
      p.read->memory.assign(there.begin(), there.end());
      bytes.pulled(*p.read, there.size());
    } else {
      chunks[p.chunk->index].assign(there.begin(), there.end());
      bytes.pulled(*p.chunk);
    }
    run();
  }

  // Bytes that have not been requested are not read.
  void stop_read(const stream_read& r) {
    const auto found =
        std::find_if(pulls.begin(), pulls.end(), [&](const a_pull& p) { return p.read == &r; });
    must(found != pulls.end(), "only a read with a READ in progress is stopped");
    found->from = found->from.first(read_at_a_time);
  }

  void end_key(const stream_write& w) {
    if (const auto found = key_of.find(&w); found != key_of.end()) {
      keys.erase(found->second);
      key_of.erase(found);
    }
  }

  void expose(stream_write& w) {
    if (refuses_key && refuses_key())
      return bytes.not_exposed(w);
    const std::vector<std::byte>& from = static_cast<a_write&>(w).data;
    must(from.size() == w.bytes, "an offered write has all of its bytes");
    must(key_of.emplace(&w, next_key).second, "a write has one key");
    keys[next_key] = from;
    bytes.exposed(w, {std::uint64_t(next_key) << 32, w.bytes, next_key});
    ++next_key;
  }

  void pull(const stream_action& a) {
    if (holds_back && bytes.reads_ahead() && holds_back())
      return bytes.hold_back();
    if (refuses_memory && refuses_memory())
      return bytes.no_memory(asio::error::no_memory);
    must(a.memory.size == a.chunk->bytes && a.memory.size != 0, "a chunk is read whole");
    must(chunks.emplace(a.chunk->index, std::vector<std::byte>()).second, "a chunk is free");
    if (has_little_memory && has_little_memory())
      a.chunk->bytes = (a.chunk->bytes + 1) / 2;
    bytes.pulling(*a.chunk);
    pulls.push_back({a.chunk, nullptr, a.memory.first(a.chunk->bytes)});
  }

  bool part_action() override {
    const stream_action a = bytes.next();
    switch (a.what) {
    case stream_action::kind::none:
      return false;
    case stream_action::kind::expose:
      expose(*a.write);
      break;
    case stream_action::kind::pull:
      pull(a);
      break;
    case stream_action::kind::pull_direct:
      must(a.read->direct && a.memory.size <= a.read->capacity, "a direct read has room");
      pulls.push_back({nullptr, static_cast<a_read*>(a.read), a.memory});
      break;
    case stream_action::kind::stop:
      stop_read(*a.read);
      break;
    case stream_action::kind::fill: {
      auto& op = static_cast<a_write&>(*a.write);
      if (a.at == 0 && refuses_memory && refuses_memory()) {
        bytes.no_memory(op, *a.block, asio::error::no_memory);
        break;
      }
      copied_lent += op.what == stream_write::kind::lend;
      std::vector<std::byte>& to = blocks[a.block->index];
      to.resize(a.at);
      to.insert(to.end(), op.data.begin() + std::ptrdiff_t(a.offset),
                op.data.begin() + std::ptrdiff_t(a.offset + a.bytes));
      break;
    }
    case stream_action::kind::take:
      take(a);
      if (a.last)
        end(static_cast<a_read&>(*a.read));
      break;
    case stream_action::kind::freed:
      if (a.chunk != nullptr) {
        must(chunks.erase(a.chunk->index) == 1, "a chunk is freed once");
        break;
      }
      must(blocks.erase(a.block->index) == 1, "a block is freed once");
      break;
    case stream_action::kind::await_idle:
      must(!awaits_idle, "the protocol asks for one visit at a time");
      awaits_idle = true;
      break;
    case stream_action::kind::wrote: {
      auto& op = static_cast<a_write&>(*a.write);
      must(!op.ended && !op.cancelled, "a write ends once");
      end_key(op);
      op.ended = true;
      break;
    }
    default:
      end(static_cast<a_read&>(*a.read));
    }
    return true;
  }

  std::span<const std::byte> payload_of(const outgoing_frame& f) override {
    auto& source = static_cast<stream_source&>(*f.operation);
    if (source.is_block()) {
      auto& b = static_cast<stream_block&>(source);
      const std::vector<std::byte>& from = blocks[b.index];
      must(b.frame_offset() + f.header.length <= from.size() && from.size() == b.bytes,
           "a block is sent whole");
      return std::span(from).subspan(b.frame_offset(), f.header.length);
    }
    auto& op = static_cast<a_write&>(source);
    must(op.frame_offset() + f.header.length <= op.data.size(),
         "the bytes of a frame are within the write");
    return std::span(op.data).subspan(op.frame_offset(), f.header.length);
  }
};

} // namespace stream_test
