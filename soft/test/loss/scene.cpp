// SPDX-License-Identifier: BSL-1.0
#include "scene.hpp"

#include <algorithm>
#include <cstring>

namespace soft::test {
namespace {

constexpr std::size_t guard = 24; // bytes around each place
constexpr std::byte untouched{0xa5};

// Bytes that differ from those of the other side.
std::byte content(std::size_t at, role of) {
  return static_cast<std::byte>(at * 7 + at / 251 + (of == role::connector ? 1 : 100));
}

void put(std::vector<std::byte>& to, std::size_t at, std::uint64_t word) {
  std::memcpy(to.data() + at, &word, sizeof(word));
}

bool is_of(const request& q, role r) {
  return q.by == request::side::both ||
         (q.by == request::side::connector) == (r == role::connector);
}

} // namespace

bool request::is_message() const noexcept {
  return what == IBV_WR_SEND || what == IBV_WR_SEND_WITH_IMM || what == IBV_WR_SEND_WITH_INV ||
         what == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool request::is_atomic() const noexcept {
  return what == IBV_WR_ATOMIC_CMP_AND_SWP || what == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool request::has_immediate() const noexcept {
  return what == IBV_WR_SEND_WITH_IMM || what == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool request::writes() const noexcept {
  return what == IBV_WR_RDMA_WRITE || what == IBV_WR_RDMA_WRITE_WITH_IMM;
}

scene::scene(unsigned early, std::vector<request> requests, int segment)
    : early_(early), segment_(segment), requests_(std::move(requests)) {
  const auto area_at_peer = [](const request& q) {
    return q.writes() ? q.place : q.is_atomic() ? area::words : area::inbox;
  };
  std::size_t most = 8;
  for (const request& q : requests_)
    most = std::max<std::size_t>(most, q.bytes);
  std::size_t end = guard;
  for (unsigned i = 0; i != areas; ++i) {
    const area a{i};
    end = (end + 7) / 8 * 8;
    places_[i].first = end;
    for (request& q : requests_) {
      if (q.what == IBV_WR_BIND_MW)
        continue;
      // The data of each request begin elsewhere.
      if (a == area::source && q.what == IBV_WR_RDMA_READ)
        q.to = end + 5;
      else if (a == area::source && !q.fetches())
        q.from = end + static_cast<std::size_t>(&q - requests_.data());
      else if ((a == area::fetched && q.fetches()) ||
               (a == area_at_peer(q) && q.what != IBV_WR_RDMA_READ)) {
        (a == area::fetched ? q.from : q.to) = end;
        end += (q.bytes + guard + 7) / 8 * 8; // an atomic needs a whole word
      }
    }
    if (a == area::source)
      end += most + requests_.size() + 5;
    places_[i].bytes = end - places_[i].first;
    end += guard;
  }
  bytes_ = end;
}

std::vector<request> scene::of(role r) const {
  std::vector<request> all;
  std::copy_if(requests_.begin(), requests_.end(), std::back_inserter(all),
               [r](const request& q) { return is_of(q, r); });
  return all;
}

std::vector<std::byte> scene::before(role r) const {
  std::vector<std::byte> all(bytes_, untouched);
  const range source = place_of(area::source);
  for (std::size_t i = 0; i != source.bytes; ++i)
    all[source.first + i] = content(i, r);
  for (const request& q : of(other_of(r)))
    if (q.is_atomic())
      put(all, q.to, found(q, other_of(r)));
  return all;
}

std::vector<std::byte> scene::after(role r) const {
  std::vector<std::byte> all = before(r);
  const std::vector<std::byte> theirs = before(other_of(r));
  const auto copy = [&](std::size_t from, std::size_t to, std::size_t bytes) {
    std::copy_n(theirs.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  for (const request& q : of(other_of(r))) {
    if (q.is_atomic())
      put(all, q.to, left(q, other_of(r)));
    else if (q.is_message() || q.writes())
      copy(q.from, q.to, q.bytes);
  }
  for (const request& q : of(r))
    if (q.fetches())
      copy(q.to, q.from, q.bytes);
  return all;
}

std::uint64_t scene::found(const request& q, role by) noexcept {
  return 0x1111111111111111u * (q.to % 7 + (by == role::connector ? 1 : 8));
}
std::uint64_t scene::left(const request& q, role by) noexcept {
  return q.what == IBV_WR_ATOMIC_FETCH_AND_ADD ? found(q, by) + addend : ~found(q, by);
}
std::uint32_t scene::immediate(std::size_t index, role by) noexcept {
  return static_cast<std::uint32_t>(0x01020300 + index + (by == role::connector ? 0 : 100));
}

const scene& mixture() {
  static const scene s(
      1,
      {
          {.what = IBV_WR_BIND_MW},
          {.what = IBV_WR_RDMA_WRITE, .bytes = 41},
          {.what = IBV_WR_SEND, .bytes = 301},
          {.what = IBV_WR_RDMA_READ, .bytes = 250},
          {.what = IBV_WR_SEND_WITH_IMM, .bytes = 18},
          {.what = IBV_WR_ATOMIC_FETCH_AND_ADD, .bytes = 8},
          {.what = IBV_WR_SEND, .bytes = 0},
          // The peer's first message comes after its window is bound.
          {.what = IBV_WR_RDMA_WRITE, .bytes = 24, .after = 1, .place = area::window},
          {.what = IBV_WR_SEND_WITH_INV, .bytes = 7, .after = 1},
          {.what = IBV_WR_ATOMIC_CMP_AND_SWP, .bytes = 8, .after = 2},
          {.what = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = 33, .after = 2},
          {.what = IBV_WR_RDMA_READ, .bytes = 0, .after = 3},
          {.what = IBV_WR_RDMA_READ, .bytes = 3, .after = 3},
          {.what = IBV_WR_SEND, .bytes = 1, .by = request::side::listener, .last = true},
      },
      256);
  return s;
}

const scene& large() {
  static const scene s(
      4, {
             {.what = IBV_WR_SEND, .bytes = 9000},
             {.what = IBV_WR_RDMA_READ, .bytes = 70'001},
             {.what = IBV_WR_RDMA_WRITE, .bytes = 20'002},
             {.what = IBV_WR_RDMA_WRITE_WITH_IMM, .bytes = 5003, .after = 1},
             {.what = IBV_WR_SEND, .bytes = 1, .by = request::side::listener, .last = true},
         });
  return s;
}

std::span<const scene* const> scenes() {
  static const scene* const all[] = {&mixture(), &large()};
  return all;
}

} // namespace soft::test
