// SPDX-License-Identifier: BSL-1.0
#include "fuzz_wire.hpp"

#include "device_side.hpp"
#include "engine/sanitizers.hpp"
#include "fuzz_input.hpp"
#include "fuzz_peer.hpp"
#include "iwarp/big_endian.hpp"
#include "iwarp/crc32c.hpp"
#include "iwarp/ddp.hpp"
#include "iwarp/mpa_negotiation.hpp"
#include "iwarp/mpa_start.hpp"
#include "iwarp/rdmap_payload.hpp"
#include "wire/numbers.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <linux/sockios.h>
#include <span>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <thread>

#if SOFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace soft::test {
namespace {

using iwarp::opcode;

reached& so_far() {
  static reached r;
  return r;
}

std::atomic<std::size_t> direct_reads{0};

// Segments that come in two pieces: room for them in the socket, if the device takes none.
constexpr int most_long = 2;
constexpr std::size_t long_segment = 8192;

/// By a Unix socket.
class peer : public fuzz_peer {
public:
  peer(const ibv_qp& qp, bool crc) : fuzz_peer(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int room = 1 << 18;
    setsockopt(socket(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    const block_address to(block_of(qp.qp_num), block_address::connections);
    require(uninterrupted([&] { return connect(socket(), &to.base(), to.size); }) == 0, "connect");
    iwarp::start_options o;
    o.peer_to_peer = true;
    o.crc = crc;
    o.ird = o.ord = 4;
    iwarp::start_frame f = make_request(o);
    std::array<std::byte, 9> numbers;
    iwarp::put_big_endian(numbers.data(), peer_number);
    iwarp::put_big_endian(numbers.data() + 4, qp.qp_num);
    iwarp::put_big_endian(numbers.data() + 8, static_cast<std::uint8_t>(qp.qp_type));
    require(f.set_private_data(numbers), "private data");
    const auto request = iwarp::encode(f);
    send(request.view());
    iwarp::start_reader reply(true);
    std::byte b{};
    do {
      const ssize_t n = take({&b, 1});
      require(n != 0, "the device has ended the connection before its start frame");
      require(n == 1, "the device does not answer the start frame");
    } while (reply.feed({&b, 1}).state == iwarp::start_reader::status::more);
    require(reply.error() == iwarp::start_error::none, "the device's start frame");
  }
  /// Gives the device a moment to send something, so that the input may answer it.
  void hear(std::chrono::milliseconds patience) {
    if (wait_for(socket(), patience))
      receive();
  }
  /// Waits until the device has read all, or for some time if it stops to read.
  void wait_until_read(std::chrono::milliseconds patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    int unread = 0;
    while (ioctl(socket(), SIOCOUTQ, &unread) == 0 && unread != 0 &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
  }
  /// All that the device sends until it ends the connection.
  const bytes& finish() {
    end();
    while (receive())
      continue;
    return heard();
  }
};

bytes fpdu(const iwarp::segment_header& h, const bytes& payload, bool crc) {
  bytes all(iwarp::max_fpdu_header);
  all.resize(iwarp::encode(
      h, std::span<std::byte, iwarp::max_fpdu_header>(all.data(), iwarp::max_fpdu_header)));
  const std::size_t ulpdu = all.size() - iwarp::ulpdu_length_size + payload.size();
  all.insert(all.end(), payload.begin(), payload.end());
  all.resize(all.size() + iwarp::padding_of(ulpdu));
  iwarp::crc32c sum;
  if (crc) // else the device does not look at it
    sum.update(all);
  all.resize(all.size() + iwarp::crc32c::size);
  sum.encode(all.data() + all.size() - iwarp::crc32c::size);
  return all;
}

/// A WRITE of no bytes: the message after which the device's side may send.
bytes ready_message(bool crc) {
  iwarp::segment_header h;
  h.op = opcode::rdma_write;
  h.last = true;
  return fpdu(h, {}, crc);
}

/// The segments of an input.
class segments {
public:
  segments(reader& in, const device_side& d, bool crc) : in_(in), device_(d), crc_(crc) {}

  bytes next() {
    iwarp::segment_header h;
    h.op = static_cast<opcode>(in_.byte() % iwarp::opcodes);
    const unsigned habits = in_.byte();
    h.last = (habits & 3) != 3;
    place p = next_place();
    h.stag = p.key;
    bytes payload;
    if (h.op == opcode::rdma_read_request && (habits & 4) == 0) {
      const place source = next_place();
      payload = copy(
          encode(iwarp::read_request{p.key, p.offset, in_.byte() * 8, source.key, source.offset}));
    } else if (h.op == opcode::atomic_request && (habits & 4) == 0) {
      iwarp::atomic_request r;
      r.op = in_.byte() % 2 == 0 ? iwarp::atomic_opcode::fetch_add
                                 : iwarp::atomic_opcode::compare_swap;
      r.stag = p.key;
      r.offset = p.offset & ~std::uint64_t(habits & 8 ? 0 : 7);
      r.add_or_swap = in_.byte();
      r.add_or_swap_mask = r.compare_mask = ~std::uint64_t(0);
      payload = copy(encode(r));
    } else if (h.op == opcode::atomic_response && (habits & 4) == 0) {
      payload = copy(encode(iwarp::atomic_response{in_.byte() % 4, in_.byte()}));
    } else if (h.op == opcode::rdma_read_response && (habits & 4) == 0) {
      h.stag = sink_key;
      p.offset = fetched_;
      payload = in_.take(in_.byte() % 4 * 8);
      if (is_long(habits))
        payload.resize(wide_request);
      fetched_ += payload.size();
    } else {
      payload = in_.take(in_.byte() % 64);
      payload.resize(payload.size() + (habits & 16 ? in_.byte() * 8 : 0));
      if (is_long(habits))
        payload.resize(std::min<std::size_t>(payload.size() + in_.byte() * 256, 64'000));
    }
    h.length = static_cast<std::uint32_t>(payload.size());
    if (h.tagged()) {
      h.tagged_offset = p.offset;
    } else {
      progress& q = queues_[static_cast<std::size_t>(h.queue())];
      h.msn = q.msn + (habits & 32 ? in_.byte() - 1 : 0);
      h.message_offset = q.offset + (habits & 64 ? in_.byte() * 4 - 8 : 0);
      q.offset += h.length;
      if (h.last)
        q = {q.msn + 1, 0};
    }
    return fpdu(h, payload, crc_);
  }

private:
  bool is_long(unsigned habits) { return (habits & 128) != 0 && long_++ < most_long; }

  struct place {
    std::uint32_t key;
    std::uint64_t offset;
  };
  // Near the beginning or the end of what a region grants, by its key or another one.
  place next_place() {
    const unsigned which = in_.byte();
    const region* const regions[] = {&device_.open,   &device_.seen_by_window, &device_.passing,
                                     &device_.closed, &device_.inbox,          &device_.foreign};
    const auto near = static_cast<std::uint64_t>(static_cast<std::int8_t>(in_.byte())) * 4;
    if (which % 8 == 7)
      return {sink_key, near};
    const region& r = (which & 64) != 0 ? device_.wide
                      : which % 8 == 6  ? device_.open
                                        : *regions[which % 8];
    return {which % 8 == 6 ? r.key ^ (1u << in_.byte() % 32) : r.key,
            r.address() + (which & 32 ? r.end : r.begin) + near};
  }
  template <std::size_t N>
  static bytes copy(const std::array<std::byte, N>& a) {
    return {a.begin(), a.end()};
  }

  struct progress {
    std::uint32_t msn = 1, offset = 0;
  };
  reader& in_;
  const device_side& device_;
  const bool crc_;
  int long_ = 0;
  std::array<progress, iwarp::queues> queues_;
  std::uint64_t fetched_ = 0; // bytes of answers to READs
};

// A deregistration, a receive, a request, a failure or nothing.
void act(unsigned kind, reader& in, device_side& d, peer& p, std::chrono::milliseconds patience) {
  switch (kind) {
  case 0:
    return d.passing.deregister();
  case 1:
    return d.free_window();
  case 2:
    return d.wide.deregister();
  case 3:
    return d.post_receive(d.wide_element(wide_size));
  case 4: {
    const unsigned request = in.byte();
    d.post_request(request, in.byte() % 4 * 8);
    return p.hear(patience);
  }
  case 5: {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    return d.modify(a, 0);
  }
  default:
    return;
  }
}

// A long segment in two pieces, the second of which the device reads into its place.
void send(const bytes& all, reader& in, device_side& d, peer& p,
          std::chrono::milliseconds patience) {
  if (all.size() <= long_segment)
    return p.send(all);
  const std::size_t first = iwarp::max_fpdu_header + in.byte() * 16;
  p.send(std::span(all).first(first));
  p.wait_until_read(patience);
  act(in.byte() % 8, in, d, p, patience);
  p.send(std::span(all).subspan(first));
}

void play(reader& in, device_side& d, peer& p, bool crc, std::chrono::milliseconds patience) {
  segments s(in, d, crc);
  const unsigned habits = in.byte();
  for (unsigned i = habits % 4; i != 0; --i)
    d.post_receive(64);
  for (int step = 0; step != most_steps && !in.at_end(); ++step) {
    switch (in.byte() % 16) {
    case 0:
      p.send(in.take(in.byte() % 32));
      break;
    case 1:
      d.post_receive(in.byte() * 2);
      break;
    case 2:
      act(in.byte() % 4, in, d, p, patience);
      break;
    case 3:
    case 4:
    case 5:
      act(4, in, d, p, patience);
      break;
    default:
      send(s.next(), in, d, p, patience);
    }
  }
  while (d.posted != most_posted) // the device reads on, up to the end
    d.post_receive(64);
}

// Each request completes once, and so does each receive, but for those that a shared receive queue
// keeps.
void count_completions(device_side& d) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  d.modify(a, 0);
  auto due = d.posted;
  if (d.srq != nullptr) {
    d.wait_for_last_receive();
    due = static_cast<int>(std::count(d.is_request.begin(), d.is_request.end(), true));
  }
  std::array<bool, most_posted> done{};
  ibv_wc w{};
  const auto count = [&] {
    require(w.wr_id < static_cast<std::uint64_t>(d.posted) && !done[w.wr_id],
            "a request completes twice");
    done[w.wr_id] = true;
    due -= d.srq == nullptr || d.is_request[w.wr_id] ? 1 : 0;
    if (w.status != IBV_WC_SUCCESS)
      return;
    so_far().receives += (w.opcode & IBV_WC_RECV) != 0 ? 1 : 0;
    so_far().fetches +=
        w.opcode == IBV_WC_RDMA_READ || w.opcode == IBV_WC_FETCH_ADD || w.opcode == IBV_WC_COMP_SWAP
            ? 1
            : 0;
  };
  while (due != 0) {
    w = d.next_completion();
    count();
  }
  while (ibv_poll_cq(d.cq, 1, &w) == 1) {
    require(d.srq != nullptr, "a request completes twice");
    count();
  }
}

} // namespace

const reached& reached_so_far() noexcept {
  so_far().direct = direct_reads;
  return so_far();
}

int fuzz_wire(const std::uint8_t* data, std::size_t size, std::chrono::milliseconds patience) {
  reader in(std::span(data, size));
  renew_secret();
  const unsigned kind = in.byte();
  device_side d(kind & 1 ? IBV_QPT_UC : IBV_QPT_RC, (kind & 2) != 0);
  bytes answer;
  {
    const bool crc = (kind & 8) != 0;
    peer p(*d.qp, crc);
    if ((kind & 4) != 0) {
      p.send(ready_message(crc));
      d.bind_window();
    }
    play(in, d, p, crc, patience);
    answer = p.finish();
  }
  count_completions(d);
  require(d.closed.is_unchanged(), "the peer wrote without the right to");
  require(d.foreign.is_unchanged(), "the peer wrote to memory of another protection domain");
  require(d.inbox.is_unchanged(region_size / 2), "the peer wrote beyond a receive");
  require(d.seen_by_window.is_unchanged(0, d.seen_by_window.begin) &&
              d.seen_by_window.is_unchanged(d.seen_by_window.end),
          "the peer wrote beside a window");
  require(d.window != nullptr || d.seen_by_window.is_unchanged(),
          "the peer wrote by a window that is no more");
  for (const region* const r : {&d.passing, &d.wide})
    require(r->mr != nullptr || r->is_unchanged(), "deregistered memory was written");
  so_far().writes += d.open.is_unchanged() ? 0 : 1;
  so_far().window_writes += d.seen_by_window.is_unchanged() ? 0 : 1;
  require(!has_secret(answer), "the peer read without the right to");
  const bool sent_more = answer.size() > iwarp::max_terminate_size + iwarp::max_fpdu_header;
  so_far().answers += sent_more ? 1 : 0;
  so_far().terminates += !answer.empty() && !sent_more ? 1 : 0;
  return 0;
}

} // namespace soft::test

// In place of the C library's, for the device: it reads a message's bytes into their place by this
// function. AddressSanitizer would not see what the kernel writes.
extern "C" ssize_t readv(int socket, const iovec* to, int count) {
#if SOFT_ADDRESS_SANITIZER
  for (int i = 0; i != count; ++i)
    soft::test::require(__asan_region_is_poisoned(to[i].iov_base, to[i].iov_len) == nullptr,
                        "a read to memory that is none");
#endif
  const ssize_t n = syscall(SYS_readv, socket, to, count);
  soft::test::direct_reads += n > 0 && count > 1 ? 1 : 0; // one: the device's buffer
  return n;
}
