// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_CM_RESOLUTION_HPP
#define SOFT_CM_RESOLUTION_HPP

#include "cm/cm_id.hpp"
#include "roce/service_resolution.hpp"

namespace soft {

// Ids of RDMA_PS_UDP: how one learns the queue pair of a listener. The messages go by UDP, from and
// to the ports of the ids. A reply comes from any port; its transaction, which is random, tells to
// which request it belongs. The engine must be locked.

/// The request of an id, until the reply comes. It repeats the request, because UDP may lose it.
struct cm_inquiry final : task, descriptor {
  explicit cm_inquiry(cm_id& i);
  ~cm_inquiry();

  /// Sends the request. The id may have an event at once: the request cannot be sent.
  void begin(const private_data& data);

private:
  void send();
  void fail(int error);
  void run() override;
  void ready(std::uint32_t events) override;
  void end(rdma_cm_event_type what, int status, const private_data* data = nullptr);

  cm_id& id_;
  roce::resolution_request request_;
  clock::time_point given_up_{};
};

/// The socket of a listener.
struct cm_inquiry_listener final : descriptor {
  explicit cm_inquiry_listener(cm_id& l) : id_(l) {}
  ~cm_inquiry_listener();
  /// An error number.
  int begin();

private:
  void ready(std::uint32_t events) override;
  void take(const roce::resolution_request& r, const sockaddr& from);

  cm_id& id_;
};

/// The request that an id of a listener has got, and the reply once it is sent.
struct cm_answer {
  cm_answer(cm_id& i, const roce::resolution_request& r);
  ~cm_answer();
  void send(roce::resolution_status status, const private_data& data);
  void send_again() const;
  /// Whether this is the request, repeated.
  bool is_for(const roce::resolution_request& r) const noexcept;

private:
  cm_id& id_;
  roce::resolution_reply reply_;
  ibv_gid source_;
  std::uint16_t source_port_;
  bool sent_ = false;
};

} // namespace soft

#endif
