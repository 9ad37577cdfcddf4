// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// Calls a condition until it holds. Throws if that takes longer than any machine should need.
void until(const std::function<bool()>& condition);

// An int: the macro ibv_reg_mr combines it with another enumeration.
constexpr int local_write = IBV_ACCESS_LOCAL_WRITE;

using id_list = std::vector<std::uint64_t>;
// The `wr_id` of each completion.
id_list ids(const std::vector<ibv_wc>& completions);

// An opened device that rdma_cm has chosen for an address. The device belongs to an rdma_cm_id.
class cm_device {
public:
  cm_device();
  ~cm_device();
  cm_device(const cm_device&) = delete;
  cm_device& operator=(const cm_device&) = delete;
  ibv_context* context() const { return id_->verbs; }

private:
  rdma_event_channel* events_;
  rdma_cm_id* id_;
};

// Two connected queue pairs in this process, each with one completion queue and a channel.
class loopback {
public:
  struct end {
    rdma_cm_id* id = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_qp* qp = nullptr;
    unsigned unacked = 0;
  };

  explicit loopback(ibv_context* context);
  ~loopback();
  loopback(const loopback&) = delete;
  loopback& operator=(const loopback&) = delete;

  int send(std::uint64_t wr_id); // 64 bytes from a to b
  int receive(std::uint64_t wr_id);
  int send_chain(const std::vector<std::uint64_t>& wr_ids, std::uint64_t* bad_wr_id = nullptr);
  int receive_chain(const std::vector<std::uint64_t>& wr_ids, std::uint64_t* bad_wr_id = nullptr);

  static bool readable(int fd);
  // Reads an event of the channel. Returns its queue; null if there is no event.
  static ibv_cq* event(end& e);
  static std::vector<ibv_wc> poll(end& e, std::size_t limit = 32);
  static std::vector<ibv_wc> await(end& e, std::size_t n); // polls until there are n
  // Posts a receive at a for which no message arrives. Its flush shows that a is in the error
  // state: siw does not report the state of a queue pair, and does not flush receives that are
  // posted later.
  int post_unused();
  bool flushed();

  end a, b;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  std::array<char, 4096> memory{};

private:
  void connect();
  void destroy();

  ibv_context* context_;
  rdma_event_channel* events_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
};
