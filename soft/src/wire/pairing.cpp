// SPDX-License-Identifier: BSL-1.0
#include "wire/pairing.hpp"

#include "device/in_force.hpp"
#include "engine/of_process.hpp"
#include "iwarp/big_endian.hpp"
#include "wire/datagrams.hpp"
#include "wire/numbers.hpp"
#include "wire/wire_listener.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cerrno>
#include <list>
#include <optional>
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
constexpr std::size_t most_unknown = 256, most_early = 256; // connections of a block
// A number is used again only after all others of its block: messages to its last queue pair may
// still be on their way.
constexpr std::uint32_t numbers = 1u << index_bits, block_count = 1u << (24 - index_bits);

// The program sets the number of READs that the queue pair begins only when it is ready to send.
iwarp::start_options options_of(const queue_pair& qp) {
  return start_options_of(qp.answered_reads(), most_reads(), current().crc.value_or(false));
}

// The private data of a request: both numbers, and the type of the queue pairs.
constexpr std::size_t request_size = 9;
std::uint8_t type_of(const queue_pair& qp) { return static_cast<std::uint8_t>(qp.qp_base.qp_type); }
struct request_numbers {
  std::uint32_t from, to;
  std::uint8_t type;
};
std::optional<request_numbers> decode(const iwarp::start_frame& request) {
  const auto data = request.private_data();
  if (data.size() != request_size)
    return std::nullopt;
  return request_numbers{iwarp::get_big_endian<std::uint32_t>(data.data()),
                         iwarp::get_big_endian<std::uint32_t>(data.data() + 4),
                         iwarp::get_big_endian<std::uint8_t>(data.data() + 8)};
}
std::array<std::byte, request_size> encode(const queue_pair& from) {
  std::array<std::byte, request_size> bytes;
  iwarp::put_big_endian(bytes.data(), from.qp_base.qp_num);
  iwarp::put_big_endian(bytes.data() + 4, from.peer_number());
  iwarp::put_big_endian(bytes.data() + 8, type_of(from));
  return bytes;
}

void reject(iwarp_wire& w, const iwarp::start_frame& request) {
  w.send_start(iwarp::make_rejection(request));
  w.close();
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
  void give_back(std::uint32_t n) {
    used_[n & (numbers - 1)] = false;
    for (auto e = early_.begin(); e != early_.end();) {
      const auto present = e++;
      if (present->numbers.to == n)
        reject_early(present);
    }
  }
  /// Answers the request of the peer of a queue pair, if it has come.
  void answer_early(pairing& p, const queue_pair& qp) {
    const auto e = find_early(qp.qp_base.qp_num, qp.peer_number());
    if (e == early_.end())
      return;
    const iwarp::start_frame request = e->request;
    p.accept(take_early(e), request);
  }
  int hear_datagrams() { return datagrams_ ? 0 : datagram_receiver::make(number_, datagrams_); }

private:
  number_block(std::uint32_t number, int s)
      : wire_listener(s, most_unknown), number_(number), socket_(s) {}

  // A request that came before its queue pair was ready to receive.
  struct early final : wire_owner {
    early(number_block& b, std::shared_ptr<iwarp_wire> w, const iwarp::start_frame& f,
          const request_numbers& n)
        : of(b), wire(std::move(w)), request(f), numbers(n) {}
    void started(const iwarp::start_frame&) override {}
    void heard() override {}
    void ended(int) override {
      of.early_.remove_if([this](const early& e) { return &e == this; });
    }
    number_block& of;
    std::shared_ptr<iwarp_wire> wire;
    iwarp::start_frame request;
    request_numbers numbers;
  };

  void requested(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& f) override {
    const auto n = decode(f);
    queue_pair* const qp = n ? queue_pair::find(n->to) : nullptr;
    if (qp == nullptr || n->type != type_of(*qp))
      return reject(*w, f);
    pairing* const p = qp->waits_for_peer(n->from) ? static_cast<pairing*>(qp->search()) : nullptr;
    if (p != nullptr && !p->wire_)
      return p->accept(w, f);
    wait(w, f, *n);
  }

  // A peer that has two requests has given up the first.
  void wait(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& f,
            const request_numbers& n) {
    if (const auto e = find_early(n.to, n.from); e != early_.end())
      take_early(e);
    else if (early_.size() == most_early)
      reject_early(early_.begin());
    w->set_owner(early_.emplace_back(*this, w, f, n));
  }
  std::list<early>::iterator find_early(std::uint32_t to, std::uint32_t from) {
    return std::find_if(early_.begin(), early_.end(), [&](const early& e) {
      return e.numbers.to == to && e.numbers.from == from;
    });
  }
  std::shared_ptr<iwarp_wire> take_early(std::list<early>::iterator e) {
    const auto w = e->wire;
    w->leave_owner();
    early_.erase(e);
    return w;
  }
  void reject_early(std::list<early>::iterator e) {
    const iwarp::start_frame request = e->request;
    reject(*take_early(e), request);
  }

  const std::uint32_t number_;
  const int socket_;
  std::bitset<numbers> used_;
  std::uint32_t next_ = 0;
  std::list<early> early_;
  std::unique_ptr<datagram_receiver> datagrams_; // once a queue pair of type UD is ready
};

namespace {

using block_list = std::vector<std::unique_ptr<number_block>>;
block_list& blocks() { return of_process<block_list>(); }

auto find_block(std::uint32_t number) {
  return std::find_if(blocks().begin(), blocks().end(),
                      [&](const auto& b) { return b->number() == block_of(number); });
}

} // namespace

int hear_datagrams(std::uint32_t number) {
  hear_network();
  return (*find_block(number))->hear_datagrams();
}

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

std::uint32_t order_of_number(std::uint32_t number) noexcept { return number & (numbers - 1); }

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
  if (of == all.end())
    return; // a child destroys what its parent made
  (*of)->give_back(number);
  if ((*of)->is_empty() && of != all.begin())
    all.erase(of);
}

std::unique_ptr<peer_search> search_peer(queue_pair& qp, search_kind kind) {
  return std::make_unique<pairing>(qp, kind);
}

pairing::pairing(queue_pair& qp, search_kind kind) : qp_(qp) {
  if (connects() && kind == another_search)
    try_later();
  else
    engine::get().schedule(*this);
}

pairing::~pairing() {
  engine::get().remove(*this);
  if (wire_)
    wire_->leave_owner();
}

void pairing::run() {
  if (wire_)
    return;
  if (connects())
    connect();
  else
    (*find_block(qp_.qp_base.qp_num))->answer_early(*this, qp_);
}

void pairing::connect() {
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

void pairing::accept(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& request) {
  const iwarp::start_answer a = answer(request, options_of(qp_));
  w->send_start(a.reply);
  if (a.result.error != iwarp::start_error::none)
    return w->close();
  wire_ = w;
  use_wire(a.result, false);
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
  use_wire(r, true);
}

void pairing::use_wire(const iwarp::start_result& agreed, bool initiator) {
  wire_->leave_owner();
  wire_->begin(agreed, initiator);
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
