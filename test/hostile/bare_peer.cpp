// SPDX-License-Identifier: BSL-1.0
#include "hostile/bare_peer.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <poll.h>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace test {
namespace {

using namespace std::chrono_literals;
using detail::frame_header;

constexpr std::uint64_t of_send = std::uint64_t(1) << 32, of_access = of_send + 1;
constexpr auto patience = 10s;

void check(bool holds, const char* what) {
  if (!holds)
    throw std::system_error(errno, std::generic_category(), what);
}

/// Destroys the ids of peers that have ended, on threads of its own: on rxe that takes ten seconds
/// and more if the victim ends its side at the same time. The end of the process waits. In the lab,
/// a thousand threads at a time would delay the victim by a second.
class leaving_ids {
public:
  ~leaving_ids() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    added_.notify_all();
    for (std::thread& t : threads_)
      t.join();
  }
  static void add(rdma_cm_id* id, rdma_event_channel* channel) {
    static leaving_ids all;
    const std::lock_guard lock(all.mutex_);
    all.ids_.emplace_back(id, channel);
    if (all.ids_.size() > all.idle_ && all.threads_.size() < most_threads)
      all.threads_.emplace_back([] { all.run(); });
    all.added_.notify_one();
  }

private:
  static constexpr std::size_t most_threads = 64;

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      added_.wait(lock, [this] { return over_ || !ids_.empty(); });
      --idle_;
      if (ids_.empty())
        return;
      const auto [id, channel] = ids_.front();
      ids_.pop_front();
      lock.unlock();
      ::rdma_destroy_id(id);
      ::rdma_destroy_event_channel(channel);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::pair<rdma_cm_id*, rdma_event_channel*>> ids_;
  std::size_t idle_ = 0;
  bool over_ = false;
  std::deque<std::thread> threads_;
};

} // namespace

bare_peer::bare_peer(std::uint32_t port, const shape& s) : shape_(s), port_(port) { open(); }

void bare_peer::resolve() {
  channel_ = ::rdma_create_event_channel();
  check(channel_ != nullptr, "rdma_create_event_channel");
  check(::rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  asio::ip::tcp::endpoint to(own_endpoint().address(), static_cast<std::uint16_t>(port_));
  asio::ip::tcp::endpoint from(shape_.from.value_or(asio::ip::address()), 0);
  check(::rdma_resolve_addr(id_, shape_.from ? static_cast<sockaddr*>(from.data()) : nullptr,
                            static_cast<sockaddr*>(to.data()), 5000) == 0,
        "rdma_resolve_addr");
  check(next_event() == RDMA_CM_EVENT_ADDR_RESOLVED, "the address");
  check(::rdma_resolve_route(id_, 5000) == 0, "rdma_resolve_route");
  check(next_event() == RDMA_CM_EVENT_ROUTE_RESOLVED, "the route");
}

void bare_peer::open() {
  resolve();
  // All peers have the context that rdma_cm has opened. Of a context that the library has not
  // adopted, siw makes the queues of 48 peers only (verbs/device_siw.hpp).
  static const device adopted(id_->verbs, ownership::borrow);
  pd_ = ::ibv_alloc_pd(id_->verbs);
  check(pd_ != nullptr, "ibv_alloc_pd");
  cq_ = ::ibv_create_cq(id_->verbs, static_cast<int>(shape_.receives) + 16, nullptr, nullptr, 0);
  check(cq_ != nullptr, "ibv_create_cq");
  memory_.resize(lent_at() + shape_.lent);
  mr_ = ::ibv_reg_mr(pd_, memory_.data(), memory_.size(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  check(mr_ != nullptr, "ibv_reg_mr");
  ibv_qp_init_attr a{};
  a.send_cq = a.recv_cq = cq_;
  a.qp_type = IBV_QPT_RC;
  a.cap.max_send_wr = 8;
  a.cap.max_recv_wr = shape_.receives;
  a.cap.max_send_sge = a.cap.max_recv_sge = 1;
  check(::rdma_create_qp(id_, pd_, &a) == 0, "rdma_create_qp");
  for (std::uint32_t i = 0; i < shape_.receives; ++i)
    post_receive(i);
}

bare_peer::~bare_peer() { close(); }

void bare_peer::close() {
  if (id_ != nullptr && id_->qp != nullptr)
    ::rdma_destroy_qp(id_);
  if (id_ != nullptr)
    leaving_ids::add(std::exchange(id_, nullptr), std::exchange(channel_, nullptr));
  for (ibv_mr* const m : std::exchange(further_, {}))
    ::ibv_dereg_mr(m);
  if (mr_ != nullptr)
    ::ibv_dereg_mr(std::exchange(mr_, nullptr));
  if (cq_ != nullptr)
    ::ibv_destroy_cq(std::exchange(cq_, nullptr));
  if (pd_ != nullptr)
    ::ibv_dealloc_pd(std::exchange(pd_, nullptr));
  if (channel_ != nullptr)
    ::rdma_destroy_event_channel(std::exchange(channel_, nullptr));
}

std::size_t bare_peer::sent_at() const noexcept {
  return std::size_t(shape_.receives) * shape_.receive_size;
}
std::size_t bare_peer::lent_at() const noexcept { return sent_at() + shape_.longest_frame; }

remote_buffer bare_peer::lent() const noexcept {
  return {reinterpret_cast<std::uintptr_t>(lent_bytes()), shape_.lent, mr_->rkey};
}

remote_buffer bare_peer::lend(void* data, std::size_t bytes) {
  ibv_mr* const m = ::ibv_reg_mr(pd_, data, bytes, IBV_ACCESS_REMOTE_READ);
  check(m != nullptr, "ibv_reg_mr");
  further_.push_back(m);
  return {reinterpret_cast<std::uintptr_t>(data), bytes, m->rkey};
}

detail::handshake bare_peer::hello(detail::handshake::kind what) const {
  detail::handshake h;
  h.what = what;
  h.receives = shape_.receives;
  h.receive_size = shape_.receive_size;
  h.max_reads = 4;
  return h;
}

void bare_peer::wait_for_event() const {
  pollfd p{channel_->fd, POLLIN, 0};
  const int ready = ::poll(&p, 1, static_cast<int>(std::chrono::milliseconds(patience).count()));
  if (ready != 1)
    throw std::runtime_error("rdma_cm reports nothing");
}

rdma_cm_event_type bare_peer::next_event(byte_vector* data) {
  wait_for_event();
  rdma_cm_event* e = nullptr;
  check(::rdma_get_cm_event(channel_, &e) == 0, "rdma_get_cm_event");
  const rdma_cm_event_type result = e->event;
  if (data != nullptr && e->param.conn.private_data != nullptr) {
    const auto* const first = static_cast<const std::byte*>(e->param.conn.private_data);
    data->assign(first, first + e->param.conn.private_data_len);
  }
  ::rdma_ack_cm_event(e);
  return result;
}

void bare_peer::request(bytes_view private_data) {
  rdma_conn_param p{};
  p.private_data = private_data.data();
  p.private_data_len = static_cast<std::uint8_t>(private_data.size());
  p.responder_resources = p.initiator_depth = 4;
  p.retry_count = p.rnr_retry_count = 7;
  // On siw a port that rdma_cm has chosen may be in use by TCP.
  int failed = ::rdma_connect(id_, &p);
  for (int n = 0; n < 20 && failed != 0 && (errno == EADDRNOTAVAIL || errno == EADDRINUSE); ++n) {
    close();
    open();
    failed = ::rdma_connect(id_, &p);
  }
  check(failed == 0, "rdma_connect");
}
void bare_peer::request(const detail::handshake& h) {
  const auto bytes = encode(h);
  request(bytes_view(bytes).first(h.size()));
}

bool bare_peer::connect(bytes_view private_data) {
  request(private_data);
  byte_vector data;
  if (next_event(&data) != RDMA_CM_EVENT_ESTABLISHED) {
    ended_ = true;
    return false;
  }
  (void)decode(data, of_victim_);
  return true;
}
bool bare_peer::connect(const detail::handshake& h) {
  const auto bytes = encode(h);
  return connect(bytes_view(bytes).first(h.size())) && send(frame_header{});
}

void bare_peer::post_receive(std::uint64_t index) {
  ibv_sge place{reinterpret_cast<std::uintptr_t>(memory_.data()) + index * shape_.receive_size,
                shape_.receive_size, mr_->lkey};
  ibv_recv_wr w{}, *bad = nullptr;
  w.wr_id = index;
  w.sg_list = &place;
  w.num_sge = 1;
  if (::ibv_post_recv(id_->qp, &w, &bad) != 0)
    ended_ = true;
}

std::optional<ibv_wc_status> bare_peer::poll(std::uint64_t id, std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  for (;;) {
    ibv_wc c{};
    const int n = ::ibv_poll_cq(cq_, 1, &c);
    check(n >= 0, "ibv_poll_cq");
    if (n == 0) {
      if (std::chrono::steady_clock::now() > end)
        return {};
      if (hears_end()) { // all that came before it has been polled
        ended_ = true;
        return {};
      }
      std::this_thread::sleep_for(50us);
      continue;
    }
    if (c.status != IBV_WC_SUCCESS)
      ended_ = true;
    else if (c.wr_id < of_send) {
      const auto first =
          memory_.begin() + static_cast<std::ptrdiff_t>(c.wr_id * shape_.receive_size);
      arrived_.emplace_back(first, first + c.byte_len);
      ++owed_;
      post_receive(c.wr_id);
    }
    if (c.wr_id == id || (id < of_send && (ended_ || !arrived_.empty())))
      return c.status;
  }
}

// Whether the victim has ended the connection: it answers nothing any more, and the device would
// repeat requests for seconds.
bool bare_peer::hears_end() {
  pollfd p{channel_->fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1 && next_event() == RDMA_CM_EVENT_DISCONNECTED;
}

bool bare_peer::send(bytes_view frame) {
  if (ended_)
    return false;
  if (frame.size() > shape_.longest_frame)
    throw std::invalid_argument("a frame that is too long for a bare peer");
  std::copy(frame.begin(), frame.end(), memory_.begin() + static_cast<std::ptrdiff_t>(sent_at()));
  ibv_sge place{reinterpret_cast<std::uintptr_t>(memory_.data()) + sent_at(),
                static_cast<std::uint32_t>(frame.size()), mr_->lkey};
  ibv_send_wr w{}, *bad = nullptr;
  w.wr_id = of_send;
  w.sg_list = &place;
  w.num_sge = 1;
  w.opcode = IBV_WR_SEND;
  w.send_flags = IBV_SEND_SIGNALED;
  if (::ibv_post_send(id_->qp, &w, &bad) != 0)
    ended_ = true;
  else if (poll(of_send, patience) != IBV_WC_SUCCESS)
    ended_ = true; // a SEND that does not complete needs its memory, so nothing follows it
  return !ended_;
}
bool bare_peer::send(frame_header h, bytes_view payload) {
  h.length = static_cast<std::uint32_t>(payload.size());
  const auto head = encode(h);
  byte_vector all(head.begin(), head.end());
  all.insert(all.end(), payload.begin(), payload.end());
  return send(bytes_view(all));
}

std::uint16_t bare_peer::take_owed() noexcept { return std::exchange(owed_, std::uint16_t(0)); }

bool bare_peer::return_credits() {
  frame_header h;
  h.credits = take_owed();
  return send(h);
}

std::optional<byte_vector> bare_peer::receive(std::chrono::milliseconds longest) {
  if (arrived_.empty() && !ended_)
    poll(0, longest);
  if (arrived_.empty())
    return {};
  byte_vector result = std::move(arrived_.front());
  arrived_.pop_front();
  return result;
}
std::optional<byte_vector> bare_peer::receive(detail::frame_type type,
                                              std::chrono::milliseconds longest) {
  while (auto f = receive(longest)) {
    frame_header h;
    if (!decode(*f, h) && h.type == type)
      return f;
  }
  return {};
}

ibv_wc_status bare_peer::access(ibv_wr_opcode what, const remote_buffer& at, bytes_view content) {
  if (ended_)
    return IBV_WC_WR_FLUSH_ERR;
  if (at.size > shape_.longest_frame || content.size() > at.size)
    throw std::invalid_argument("an access that is too long for a bare peer");
  const auto place_of_bytes = memory_.begin() + static_cast<std::ptrdiff_t>(sent_at());
  std::fill_n(place_of_bytes, at.size, std::byte(0xee));
  std::copy(content.begin(), content.end(), place_of_bytes);
  ibv_sge place{reinterpret_cast<std::uintptr_t>(memory_.data()) + sent_at(),
                static_cast<std::uint32_t>(at.size), mr_->lkey};
  ibv_send_wr w{}, *bad = nullptr;
  w.wr_id = of_access;
  w.sg_list = &place;
  w.num_sge = 1;
  w.opcode = what;
  w.send_flags = IBV_SEND_SIGNALED;
  w.wr.rdma.remote_addr = at.address;
  w.wr.rdma.rkey = at.rkey;
  if (::ibv_post_send(id_->qp, &w, &bad) != 0)
    return IBV_WC_GENERAL_ERR;
  const auto result = poll(of_access, patience);
  ended_ = ended_ || result != IBV_WC_SUCCESS;
  return result.value_or(IBV_WC_RESP_TIMEOUT_ERR);
}
ibv_wc_status bare_peer::read(const remote_buffer& from) {
  return access(IBV_WR_RDMA_READ, from, {});
}
ibv_wc_status bare_peer::write(const remote_buffer& to, bytes_view content) {
  return access(IBV_WR_RDMA_WRITE, to, content);
}

bool bare_peer::reaches(const remote_buffer& to, const remote_buffer& good) {
  return write(to) == IBV_WC_SUCCESS && read(good.first(8)) == IBV_WC_SUCCESS;
}

frame_header frame(detail::frame_type type, std::uint32_t id) {
  frame_header h;
  h.type = type;
  h.id = id;
  return h;
}

bytes_view as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

} // namespace test
