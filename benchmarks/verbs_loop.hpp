// SPDX-License-Identifier: BSL-1.0
//
// Hand-written loops on verbs, as fast as a loop can be with one work request for each
// ibv_post_send and every send signaled: the reference for the library. The ends of a process have
// one completion queue, polled 32 at a time. To wait, a loop arms the queue, polls once more, and
// then blocks in ibv_get_cq_event; events are acknowledged 64 at a time. With `epoll` the loop
// blocks in epoll_wait instead, as a loop with sockets or timers must, and the channel does not
// block. With `copying` the program's memory is not registered: each message is copied to
// registered memory and from it. One way, a copying receiver, and on iWARP any, allows as many
// further messages as it has received: a SEND that finds no receive ends a connection of iWARP.
#pragma once

#include "cm_link.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace bench {

enum class verbs_way { plain, epoll, copying };

class verbs_loop final : public loop {
public:
  /// The ends in this process; each may be null.
  verbs_loop(const plan& p, verbs_way way, cm_end* active, cm_end* passive, process_pipe* to_active)
      : plan_(p), active_(active), passive_(passive) {
    const bool epoll = way == verbs_way::epoll;
    ibv_context* context = (active ? active : passive)->context();
    if (p.how == mode::event)
      check((channel_ = ibv_create_comp_channel(context)) != nullptr, "ibv_create_comp_channel");
    if (channel_ && epoll) {
      check((epoll_ = epoll_create1(0)) >= 0, "epoll_create1");
      epoll_event e{EPOLLIN | EPOLLET, {}};
      check(epoll_ctl(epoll_, EPOLL_CTL_ADD, channel_->fd, &e) == 0, "epoll_ctl");
      check(fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
    }
    check((cq_ = ibv_create_cq(context, 1024, nullptr, channel_, 0)) != nullptr, "ibv_create_cq");
    check((pd_ = ibv_alloc_pd(context)) != nullptr, "ibv_alloc_pd");
    connect_ends(active, passive, pd_, cq_, to_active);
    if (active)
      near_.emplace(pd_, 'a', p.what == work::bulk ? p.window() : 1);
    if (passive)
      far_.emplace(pd_, 'p');
    std::uint32_t receives = p.receives();
    if (way == verbs_way::copying) {
      receives = std::min(receives, 2 * p.window() + 2);
      if (active)
        near_copies_.emplace(pd_, p, receives);
      if (passive)
        far_copies_.emplace(pd_, p, receives);
    }
    credits_ = counts_credits() ? receives : ~std::uint64_t(0);
    for (std::uint32_t i = 0; i < receives; ++i) {
      if (active && (p.what == work::send || counts_credits()))
        receive(*active, i);
      if (passive && (p.what == work::send || p.what == work::rate))
        receive(*passive, i);
    }
    if (!active)
      to_active->put('r');
    else if (!passive)
      to_active->get<char>();
  }

  queue_counters counters() const override { return counters_; }

  void run(std::uint64_t operations) override {
    switch (plan_.what) {
    case work::send:
      return round_trips(operations);
    case work::rate:
      return messages(operations);
    default:
      return one_sided(operations);
    }
  }

  void serve() override {
    for (;;)
      each_completion([this](const ibv_wc& wc) {
        if (wc.opcode == IBV_WC_RECV)
          plan_.what == work::send ? answer(wc) : take(wc);
      });
  }

private:
  /// The memory of a program that copies, and registered memory with a place for each send and each
  /// receive.
  struct copies {
    copies(ibv_pd* pd, const plan& p, std::uint32_t receives)
        : stride((p.bytes + 63) / 64 * 64),
          registered(pd, 'c', (p.window() + receives) * stride / memory::half + 1),
          sends(p.window()),
          from(p.bytes, 'f'),
          into(p.bytes) {}

    char* place(std::uint64_t n) const { return registered.data + memory::half + n * stride; }
    char* place_of_receive(std::uint64_t slot) const { return place(sends + slot); }
    char* copy_out() {
      char* const to = place(next++ % sends);
      std::memcpy(to, from.data(), from.size());
      return to;
    }
    void copy_in(std::uint64_t slot) {
      std::memcpy(into.data(), place_of_receive(slot), into.size());
    }

    std::size_t stride; // from place to place
    memory registered;
    std::uint32_t sends;
    std::vector<char> from, into;
    std::uint64_t next = 0;
  };

  const memory& memory_of(const cm_end& end) const { return &end == active_ ? *near_ : *far_; }
  copies* copies_of(const cm_end& end) {
    auto& c = &end == active_ ? near_copies_ : far_copies_;
    return c ? &*c : nullptr;
  }

  void send(cm_end& end) {
    const memory& m = memory_of(end);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(m.data), plan_.bytes, m.mr->lkey};
    if (copies* const c = copies_of(end))
      sge = {reinterpret_cast<std::uintptr_t>(c->copy_out()), plan_.bytes, c->registered.mr->lkey};
    ibv_send_wr wr{}, *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (plan_.bytes <= end.inline_limit())
      wr.send_flags |= IBV_SEND_INLINE;
    check(ibv_post_send(end.qp(), &wr, &bad) == 0, "ibv_post_send");
  }

  void transfer(std::uint64_t n) {
    char* const data =
        near_->data + (plan_.what == work::bulk ? 1 + n % plan_.window() : 0) * memory::half;
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(data), plan_.bytes, near_->mr->lkey};
    ibv_send_wr wr{}, *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = plan_.what == work::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(far_->data + memory::half);
    wr.wr.rdma.rkey = far_->mr->rkey;
    check(ibv_post_send(active_->qp(), &wr, &bad) == 0, "ibv_post_send");
  }

  void receive(cm_end& end, std::uint64_t slot) {
    const memory& m = memory_of(end);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(m.data + memory::half), plan_.bytes, m.mr->lkey};
    if (const copies* const c = copies_of(end))
      sge = {reinterpret_cast<std::uintptr_t>(c->place_of_receive(slot)), plan_.bytes,
             c->registered.mr->lkey};
    ibv_recv_wr wr{}, *bad;
    wr.wr_id = 2 * slot + (&end == passive_ ? 1 : 0);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    check(ibv_post_recv(end.qp(), &wr, &bad) == 0, "ibv_post_recv");
  }

  bool counts_credits() const {
    const bool iwarp = pd_->context->device->transport_type == IBV_TRANSPORT_IWARP;
    return plan_.what == work::rate && (iwarp || near_copies_ || far_copies_);
  }

  /// A message has arrived.
  void take(const ibv_wc& wc) {
    cm_end& end = is_passive(wc) ? *passive_ : *active_;
    if (copies* const c = copies_of(end))
      c->copy_in(wc.wr_id / 2);
    receive(end, wc.wr_id / 2);
    if (counts_credits() && ++taken_ % plan_.window() == 0)
      give_credits();
  }

  /// An empty message, which allows the sender a window of further messages.
  void give_credits() {
    ibv_send_wr wr{}, *bad;
    wr.wr_id = of_credits;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    check(ibv_post_send(passive_->qp(), &wr, &bad) == 0, "ibv_post_send");
  }
  void take_credits(const ibv_wc& wc) {
    receive(*active_, wc.wr_id / 2);
    credits_ += plan_.window();
  }
  static bool is_passive(const ibv_wc& wc) { return wc.wr_id % 2 == 1; }

  void answer(const ibv_wc& wc) {
    take(wc);
    send(*passive_);
  }

  template <class F>
  void each_completion(F&& f) {
    std::array<ibv_wc, 32> wc;
    const int n = ibv_poll_cq(cq_, static_cast<int>(wc.size()), wc.data());
    ++counters_.polls;
    for (int i = 0; i < n; ++i) {
      const ibv_wc& c = wc[static_cast<std::size_t>(i)];
      if (c.status != IBV_WC_SUCCESS)
        fail("completion", ibv_wc_status_str(c.status));
      f(c);
    }
    if (n == 0 && channel_)
      wait();
  }

  void wait() {
    if (!armed_) {
      check(ibv_req_notify_cq(cq_, 0) == 0, "ibv_req_notify_cq");
      armed_ = true;
      ++counters_.arms;
      return;
    }
    epoll_event e;
    if (epoll_ >= 0)
      check(epoll_wait(epoll_, &e, 1, -1) == 1, "epoll_wait");
    ibv_cq* cq;
    void* context;
    if (ibv_get_cq_event(channel_, &cq, &context) != 0)
      return check(epoll_ >= 0 && errno == EAGAIN, "ibv_get_cq_event");
    armed_ = false;
    ++counters_.events;
    if (++events_ == 64) {
      ibv_ack_cq_events(cq_, events_);
      events_ = 0;
    }
  }

  void round_trips(std::uint64_t left) {
    send(*active_);
    while (left != 0)
      each_completion([&](const ibv_wc& wc) {
        if (wc.opcode != IBV_WC_RECV)
          return;
        if (is_passive(wc))
          return answer(wc);
        take(wc);
        if (--left != 0)
          send(*active_);
      });
  }

  void messages(std::uint64_t operations) {
    std::uint64_t posted = 0, sent = 0, received = 0;
    const auto send_more = [&] {
      for (; posted < operations && posted - sent < plan_.window() && credits_ != 0; ++posted) {
        --credits_;
        send(*active_);
      }
    };
    send_more();
    while (sent < operations || (passive_ != nullptr && received < operations))
      each_completion([&](const ibv_wc& wc) {
        if (wc.opcode == IBV_WC_RECV && is_passive(wc)) {
          ++received;
          return take(wc);
        }
        if (wc.opcode == IBV_WC_RECV)
          take_credits(wc);
        else if (wc.wr_id != of_credits)
          ++sent;
        send_more();
      });
  }

  void one_sided(std::uint64_t operations) {
    std::uint64_t posted = 0, done = 0;
    for (; posted < plan_.window() && posted < operations; ++posted)
      transfer(posted);
    while (done < operations)
      each_completion([&](const ibv_wc&) {
        ++done;
        if (posted < operations) {
          transfer(posted++);
        }
      });
  }

  static constexpr std::uint64_t of_credits = 1;

  plan plan_;
  cm_end *active_, *passive_;
  std::uint64_t credits_ = 0, taken_ = 0;
  int epoll_ = -1;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_pd* pd_ = nullptr;
  std::optional<memory> near_, far_;
  std::optional<copies> near_copies_, far_copies_;
  bool armed_ = false;
  unsigned events_ = 0;
  queue_counters counters_;
};

} // namespace bench
