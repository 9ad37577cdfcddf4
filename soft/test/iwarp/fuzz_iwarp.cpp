// SPDX-License-Identifier: BSL-1.0
#include "fuzz_iwarp.hpp"

#include "iwarp/fpdu_reader.hpp"
#include "iwarp/mpa_negotiation.hpp"
#include "iwarp/rdmap_payload.hpp"
#include "iwarp/terminate.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace soft::iwarp::test {
namespace {

void require(bool holds, const char* what) noexcept {
  if (holds)
    return;
  std::fprintf(stderr, "fuzz_iwarp: %s\n", what);
  std::abort();
}

/// A sink with 512 bytes of memory, of which it provides at most 256 from the middle, in parts.
class small_sink : public segment_sink {
public:
  explicit small_sink(unsigned habits) noexcept : habits_(habits) {
    memory_.fill(std::byte{0xa5});
    provided_.fill(false);
  }

  begin_result begin_segment(const segment_header& h, placement& to) noexcept override {
    ++calls_;
    require(h.length <= 65535, "a segment is longer than an FPDU");
    require(traits(h.op).most >= h.length, "a segment is longer than its message may be");
    if ((habits_ & not_now_habit) != 0 && calls_ % 3 == 1)
      return begin_result::not_now();
    if ((habits_ & discard_habit) != 0 && calls_ % 5 == 0)
      return begin_result::discard();
    const std::uint64_t at = h.tagged() ? h.tagged_offset : h.message_offset;
    if (at > size || h.length > size - at)
      return begin_result::fail(ddp_error(ddp_tagged_code::base_or_bounds_violation));
    // The memory begins at the offset and is exactly as large as the segment.
    std::size_t from = first + at;
    for (std::size_t left = h.length; left != 0;) {
      const std::size_t part = std::min<std::size_t>(left, (habits_ & parts_habit) != 0 ? 50 : 256);
      std::fill_n(provided_.begin() + static_cast<std::ptrdiff_t>(from), part, true);
      require(to.add({memory_.data() + from, part}), "the placement is full");
      from += part;
      left -= part;
    }
    return begin_result::place();
  }

  failure end_segment(const segment_header& h) noexcept override {
    const std::span<const std::byte> message(memory_.data() + first, size);
    if (h.last && h.op == opcode::terminate && h.message_offset + h.length <= size)
      (void)terminate::decode(message.first(h.message_offset + h.length));
    atomic_request request;
    if (h.last && h.op == opcode::atomic_request)
      (void)decode(message.first<atomic_request::size>(), request);
    return {};
  }

  void check() const noexcept {
    for (std::size_t i = 0; i != memory_.size(); ++i)
      require(provided_[i] || memory_[i] == std::byte{0xa5}, "a byte outside was written");
  }

private:
  static constexpr unsigned not_now_habit = 2;
  static constexpr unsigned discard_habit = 4;
  static constexpr unsigned parts_habit = 8;
  static constexpr std::size_t first = 128;
  static constexpr std::size_t size = 256;

  std::array<std::byte, 512> memory_;
  std::array<bool, 512> provided_;
  unsigned habits_;
  unsigned calls_ = 0;
};

void feed_start_reader(std::span<const std::byte> stream, bool reply, std::size_t step) {
  start_reader reader(reply);
  std::size_t at = 0;
  while (at != stream.size()) {
    // A copy of the exact size lets AddressSanitizer see reads beyond the end.
    const std::size_t n = std::min(step, stream.size() - at);
    const auto piece = std::make_unique<std::byte[]>(n);
    std::ranges::copy(stream.subspan(at, n), piece.get());
    const auto r = reader.feed({piece.get(), n});
    require(r.consumed <= n, "the start reader took too much");
    at += r.consumed;
    if (r.state != start_reader::status::more)
      break;
    require(r.consumed == n, "the start reader left bytes");
  }
  require(at <= start_frame::max_size, "a start frame is too long");
  if (reader.frame().revision == 2 && !reply && reader.error() == start_error::none) {
    const start_answer a = answer(reader.frame(), {});
    (void)encode(a.reply);
    (void)conclude(reader.frame(), a.reply, {});
  }
}

/// Writes to the targets as readv would, and returns the bytes written.
std::size_t write_directly(fpdu_reader& reader, std::span<const std::byte> from) {
  std::size_t done = 0;
  std::size_t room = 0;
  for (const auto& target : reader.targets()) {
    room += target.size();
    const auto part = from.subspan(done, std::min(target.size(), from.size() - done));
    std::ranges::copy(part, target.begin());
    done += part.size();
  }
  require(room == 0 || room == reader.payload_pending(), "the targets are not the pending payload");
  reader.placed(done);
  return done;
}

void feed_fpdu_reader(std::span<const std::byte> stream, unsigned habits, std::size_t step) {
  small_sink sink(habits);
  fpdu_reader reader((habits & 1) != 0, sink);
  unsigned turn = 0;
  std::size_t at = 0;
  while (at != stream.size() && reader.state() != reader_state::failed) {
    if (reader.state() == reader_state::stopped) {
      require(reader.feed(stream.subspan(at)) == 0, "a stopped reader took bytes");
      reader.resume();
      continue;
    }
    const std::size_t n = std::min(step, stream.size() - at);
    if (++turn % 2 == 0 && (habits & 16) != 0)
      if (const std::size_t done = write_directly(reader, stream.subspan(at, n))) {
        at += done;
        continue;
      }
    const auto piece = std::make_unique<std::byte[]>(n);
    std::ranges::copy(stream.subspan(at, n), piece.get());
    const std::size_t taken = reader.feed({piece.get(), n});
    require(taken <= n, "the reader took too much");
    require(taken == n || reader.state() != reader_state::reading, "the reader left bytes");
    at += taken;
  }
  sink.check();
  if (reader.state() == reader_state::failed)
    (void)describe(reader.error());
  (void)terminate(reader.error(), reader.fpdu_header());
}

} // namespace

int fuzz_iwarp(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  const unsigned habits = data[0];
  const auto stream = std::as_bytes(std::span(data + 1, size - 1));
  const std::size_t step = habits % 7 * 13 + 1;
  feed_start_reader(stream, false, step);
  feed_start_reader(stream, true, step);
  feed_fpdu_reader(stream, habits, step);
  return 0;
}

} // namespace soft::iwarp::test
