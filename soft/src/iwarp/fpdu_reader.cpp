// SPDX-License-Identifier: BSL-1.0
#include "iwarp/fpdu_reader.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace soft::iwarp {

bool placement::add(std::span<std::byte> part) noexcept {
  if (part.empty())
    return true;
  if (count_ == max_parts)
    return false;
  parts_[count_++] = part;
  bytes_ += part.size();
  return true;
}

void placement::clear() noexcept {
  first_ = 0;
  count_ = 0;
  bytes_ = 0;
}

void placement::shorten(std::size_t bytes) noexcept {
  std::size_t left = bytes;
  std::size_t count = 0;
  for (; left != 0; ++count) {
    parts_[count] = parts_[count].first(std::min(left, parts_[count].size()));
    left -= parts_[count].size();
  }
  count_ = count;
  bytes_ = bytes;
}

std::span<std::byte> placement::take(std::size_t most) noexcept {
  assert(first_ != count_);
  std::span<std::byte>& part = parts_[first_];
  const auto taken = part.first(std::min(most, part.size()));
  part = part.subspan(taken.size());
  bytes_ -= taken.size();
  if (part.empty())
    ++first_;
  return taken;
}

std::size_t fpdu_reader::feed(std::span<const std::byte> bytes) noexcept {
  std::size_t taken = 0;
  while (state_ == reader_state::reading && taken != bytes.size()) {
    const auto rest = bytes.subspan(taken);
    switch (stage_) {
    case stage::header: {
      if (between_) {
        between_ = false;
        have_header_ = 0;
        want_header_ = fpdu_control_size;
      }
      const std::size_t n = std::min(rest.size(), want_header_ - have_header_);
      std::memcpy(header_.data() + have_header_, rest.data(), n);
      have_header_ += n;
      taken += n;
      if (have_header_ == want_header_)
        header_complete();
      break;
    }
    case stage::payload: {
      auto piece = rest.first(std::min(rest.size(), pending_));
      taken += piece.size();
      pending_ -= piece.size();
      if (crc_on_)
        crc_.update(piece);
      while (!discard_ && !piece.empty()) {
        const auto target = to_.take(piece.size());
        std::memcpy(target.data(), piece.data(), target.size());
        piece = piece.subspan(target.size());
      }
      if (pending_ == 0)
        payload_complete();
      break;
    }
    case stage::trailer: {
      const std::size_t n = std::min(rest.size(), want_trailer_ - have_trailer_);
      std::memcpy(trailer_.data() + have_trailer_, rest.data(), n);
      have_trailer_ += n;
      taken += n;
      if (have_trailer_ == want_trailer_)
        trailer_complete();
      break;
    }
    }
  }
  return taken;
}

void fpdu_reader::header_complete() noexcept {
  if (want_header_ == fpdu_control_size) {
    const std::span<const std::byte, fpdu_control_size> control(header_.data(), fpdu_control_size);
    if (const failure f = check_control(control, want_header_))
      fail(*f);
    return;
  }
  if (const failure f = decode(fpdu_header(), segment_))
    return fail(*f);
  if (const failure f = order_.accept(segment_))
    return fail(*f);
  if (crc_on_) {
    crc_.reset();
    crc_.update(fpdu_header());
  }
  begin();
}

void fpdu_reader::begin() noexcept {
  to_.clear();
  const begin_result r = sink_.begin_segment(segment_, to_);
  switch (r.action) {
  case begin_action::place:
    if (to_.size() < segment_.length)
      return fail(segment_.tagged() ? ddp_error(ddp_tagged_code::base_or_bounds_violation)
                                    : ddp_error(ddp_untagged_code::message_too_long));
    to_.shorten(segment_.length);
    discard_ = false;
    break;
  case begin_action::discard:
    to_.clear();
    discard_ = true;
    break;
  case begin_action::not_now:
    state_ = reader_state::stopped;
    return;
  case begin_action::fail:
    return fail(r.error);
  }
  state_ = reader_state::reading;
  stage_ = stage::payload;
  pending_ = segment_.length;
  if (pending_ == 0)
    payload_complete();
}

reader_state fpdu_reader::resume() noexcept {
  if (state_ == reader_state::stopped)
    begin();
  return state_;
}

std::span<const std::span<std::byte>> fpdu_reader::targets() const noexcept {
  if (payload_pending() == 0 || discard_ || crc_on_)
    return {};
  return to_.parts();
}

void fpdu_reader::placed(std::size_t bytes) noexcept {
  assert(bytes == 0 || (!discard_ && !crc_on_ && bytes <= payload_pending()));
  if (bytes == 0)
    return;
  pending_ -= bytes;
  for (std::size_t left = bytes; left != 0;)
    left -= to_.take(left).size();
  if (pending_ == 0)
    payload_complete();
}

void fpdu_reader::payload_complete() noexcept {
  stage_ = stage::trailer;
  have_trailer_ = 0;
  want_trailer_ = padding_of(ddp_header_size(segment_.op) + segment_.length) + crc32c::size;
}

void fpdu_reader::trailer_complete() noexcept {
  if (crc_on_) {
    const std::size_t padding = want_trailer_ - crc32c::size;
    crc_.update(std::span(trailer_).first(padding));
    if (!crc_.matches(trailer_.data() + padding))
      return fail(mpa_error(mpa_error_code::crc));
  }
  to_.clear();
  stage_ = stage::header;
  between_ = true;
  if (const failure f = sink_.end_segment(segment_))
    fail(*f);
}

void fpdu_reader::fail(const protocol_error& e) noexcept {
  to_.clear();
  pending_ = 0;
  error_ = e;
  state_ = reader_state::failed;
}

bool fpdu_reader::at_boundary() const noexcept { return between_ && !order_.in_any_message(); }

} // namespace soft::iwarp
