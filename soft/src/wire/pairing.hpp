// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_PAIRING_HPP
#define SOFT_WIRE_PAIRING_HPP

#include "wire/iwarp_wire.hpp"

#include <cstdint>
#include <memory>

namespace soft {

/// Queue pairs of two processes of one machine that a program connects itself: it exchanges their
/// numbers, and calls ibv_modify_qp(3). A number tells where its process is: its upper 12 bits name
/// an abstract address of unix(7), which only this machine's processes reach, and no file.
///
/// The queue pair with the lower number connects. Its request waits in the other process until that
/// queue pair is ready to receive. If no such queue pair is there, it connects again after a pause.
/// The wire is iWARP's, for queue pairs of type UC, too. The engine must be locked.
class pairing final : public peer_search, private wire_owner, private task {
public:
  pairing(queue_pair& qp, search_kind kind);
  ~pairing() override;

private:
  friend class number_block; // takes the peer's request
  void started(const iwarp::start_frame& f) override;
  void heard() override {}
  void ended(int error) override;
  void run() override;
  bool connects() const noexcept { return qp_.qp_base.qp_num < qp_.peer_number(); }
  void connect();
  void accept(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& request);
  void use_wire(const iwarp::start_result& agreed, bool initiator);
  void try_later();

  queue_pair& qp_;
  unsigned tries_ = 0;
  iwarp::start_frame request_;
  std::shared_ptr<iwarp_wire> wire_;
};

/// Makes the process's address. False: errno of socket(2) and bind(2).
bool prepare_numbers();

} // namespace soft

#endif
