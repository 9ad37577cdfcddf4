// SPDX-License-Identifier: BSL-1.0
#include "wire/pairing.hpp"

#include "device/in_force.hpp"
#include "iwarp/big_endian.hpp"
#include "wire/datagrams.hpp"
#include "wire/numbers.hpp"
#include "wire/wire_listener.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cerrno>
#include <random>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace soft {
namespace {

constexpr std::chrono::milliseconds pause{10}, // until the next try to connect
    long_pause{100};                           // after many of them
constexpr unsigned many_tries = 100;
constexpr std::size_t most_unknown = 256;
// A number is used again only after all others of its block: messages to its last queue pair may
// still be on their way.
constexpr std::uint32_t numbers = 1u << index_bits, block_count = 1u << (24 - index_bits);

iwarp::start_options options_of(const queue_pair& qp) {
  return start_options_of(most_reads(), qp.read_depth(), current().crc.value_or(false));
}

// The private data of a request: both numbers, and the type of the queue pairs.
constexpr std::size_t request_size = 9;
std::uint8_t type_of(const queue_pair& qp) { return static_cast<std::uint8_t>(qp.qp_base.qp_type); }
std::array<std::byte, request_size> encode(const queue_pair& from) {
  std::array<std::byte, request_size> bytes;
  iwarp::put_big_endian(bytes.data(), from.qp_base.qp_num);
  iwarp::put_big_endian(bytes.data() + 4, from.peer_number());
  iwarp::put_big_endian(bytes.data() + 8, type_of(from));
  return bytes;
}

} // namespace

/// Some numbers of queue pairs, and the socket by which other processes reach them.
class number_block final : public wire_listener {
public:
  // 0 or an error number
  static int make(std::unique_ptr<number_block>& result) {
    static std::minstd_rand random{std::random_device{}()};
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const std::uint32_t number = random() >> index_bits & (block_count - 1);
      if (number == 0)
        continue;
      const int s = make_socket(block_address::connections);
      if (s < 0)
        return errno;
      auto made = std::unique_ptr<number_block>(new number_block(number, s));
      const block_address a(number, block_address::connections);
      if (bind(s, &a.base(), a.size) != 0) {
        if (errno == EADDRINUSE)
          continue;
        return errno;
      }
      if (listen(s, 64) != 0)
        return errno;
      if (const int error = engine::get().watch(s, EPOLLIN, *made))
        return error;
      result = std::move(made);
      return 0;
    }
    return EADDRINUSE;
  }
  ~number_block() {
    engine::get().forget(socket_); // before the number of the descriptor is used again
    close(socket_);
  }

  bool is_full() const { return used_.all(); }
  std::uint32_t number() const { return number_; }
  bool is_empty() const { return used_.none(); }
  std::uint32_t take() {
    while (used_[next_])
      next_ = (next_ + 1) & (numbers - 1);
    used_[next_] = true;
    const std::uint32_t taken = number_ << index_bits | next_;
    next_ = (next_ + 1) & (numbers - 1);
    return taken;
  }
  void give_back(std::uint32_t n) { used_[n & (numbers - 1)] = false; }
  int hear_datagrams() { return datagrams_ ? 0 : datagram_receiver::make(number_, datagrams_); }

private:
  number_block(std::uint32_t number, int s)
      : wire_listener(s, most_unknown), number_(number), socket_(s) {}

  void requested(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& f) override {
    const auto data = f.private_data();
    queue_pair* const qp =
        data.size() == request_size
            ? queue_pair::find(iwarp::get_big_endian<std::uint32_t>(data.data() + 4))
            : nullptr;
    pairing* const p =
        qp != nullptr && qp->waits_for_peer(iwarp::get_big_endian<std::uint32_t>(data.data())) &&
                iwarp::get_big_endian<std::uint8_t>(data.data() + 8) == type_of(*qp)
            ? static_cast<pairing*>(qp->search())
            : nullptr;
    if (p == nullptr || p->wire_) { // not ready to receive: the peer tries again
      w->send_start(iwarp::make_rejection(f));
      return w->close();
    }
    const iwarp::start_answer a = answer(f, options_of(*qp));
    w->send_start(a.reply);
    if (a.result.error != iwarp::start_error::none)
      return w->close();
    p->wire_ = w;
    p->connected(a.result.crc, false);
  }

  const std::uint32_t number_;
  const int socket_;
  std::bitset<numbers> used_;
  std::uint32_t next_ = 0;
  std::unique_ptr<datagram_receiver> datagrams_; // once a queue pair of type UD is ready
};

namespace {

std::vector<std::unique_ptr<number_block>>& blocks() {
  static auto* const all = new std::vector<std::unique_ptr<number_block>>;
  return *all;
}

auto find_block(std::uint32_t number) {
  return std::find_if(blocks().begin(), blocks().end(),
                      [&](const auto& b) { return b->number() == block_of(number); });
}

} // namespace

int hear_datagrams(std::uint32_t number) { return (*find_block(number))->hear_datagrams(); }

std::uint32_t take_number() {
  auto& all = blocks();
  auto free = std::find_if(all.begin(), all.end(), [](const auto& b) { return !b->is_full(); });
  if (free == all.end()) {
    std::unique_ptr<number_block> made;
    if (const int error = number_block::make(made)) {
      errno = error;
      return 0;
    }
    free = all.insert(all.end(), std::move(made));
  }
  return (*free)->take();
}

bool prepare_numbers() {
  if (!blocks().empty())
    return true;
  const std::uint32_t first = take_number();
  if (first == 0)
    return false;
  give_back_number(first);
  return true;
}

// The first block stays, so that a process that makes and destroys queue pairs keeps its address.
void give_back_number(std::uint32_t number) {
  auto& all = blocks();
  const auto of = find_block(number);
  (*of)->give_back(number);
  if ((*of)->is_empty() && of != all.begin())
    all.erase(of);
}

std::unique_ptr<peer_search> search_peer(queue_pair& qp, search_kind kind) {
  return std::make_unique<pairing>(qp, kind);
}

pairing::pairing(queue_pair& qp, search_kind kind) : qp_(qp) {
  if (qp.qp_base.qp_num >= qp.peer_number())
    return;
  if (kind == first_search)
    engine::get().schedule(*this);
  else
    try_later();
}

pairing::~pairing() {
  engine::get().remove(*this);
  if (wire_)
    wire_->leave_owner();
}

void pairing::run() {
  if (wire_)
    return;
  const int s = make_socket(block_address::connections);
  int error = s < 0 ? errno : 0;
  if (error == 0) {
    const block_address to(block_of(qp_.peer_number()), block_address::connections);
    wire_ = iwarp_wire::connect(s, to.base(), to.size, *this, error);
  }
  if (!wire_) // the peer's process may not be there yet
    return try_later();
  request_ = make_request(options_of(qp_));
  request_.set_private_data(encode(qp_));
  wire_->send_start(request_);
}

void pairing::started(const iwarp::start_frame& f) {
  const iwarp::start_result r = conclude(request_, f, options_of(qp_));
  if (r.error != iwarp::start_error::none) {
    if (const iwarp::failure e = to_protocol_error(r.error))
      wire_->refuse(*e, r.crc);
    else
      wire_->close();
    return ended(0);
  }
  connected(r.crc, true);
}

void pairing::connected(bool crc, bool initiator) {
  wire_->leave_owner();
  wire_->begin(crc, initiator);
  if (initiator)
    wire_->send_ready();
  qp_.use_wire(wire_);
}

void pairing::ended(int) {
  wire_.reset();
  try_later();
}

void pairing::try_later() {
  if (tries_ != many_tries)
    ++tries_;
  engine::get().schedule_at(*this, clock::now() + (tries_ == many_tries ? long_pause : pause));
}

} // namespace soft
