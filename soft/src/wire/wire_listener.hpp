// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_WIRE_WIRE_LISTENER_HPP
#define SOFT_WIRE_WIRE_LISTENER_HPP

#include "wire/iwarp_wire.hpp"

#include <cstddef>
#include <list>
#include <memory>

namespace soft {

/// The connections of a listening socket, until each has sent its request. A connection whose
/// request does not come in time is closed. The engine must be locked.
class wire_listener : public descriptor, private task {
public:
  /// @param most  connections whose request has not come, at most; a further one takes the place of
  ///              the oldest, after a pause in which the request of that may come
  wire_listener(int socket, std::size_t most);

protected:
  ~wire_listener();

private:
  struct unknown;
  /// The request of a connection came. The wire has no owner.
  virtual void requested(const std::shared_ptr<iwarp_wire>& w, const iwarp::start_frame& f) = 0;
  void ready(std::uint32_t events) final;
  void run() final { resume(); }
  void pause_until(clock::time_point when);
  void resume();
  void take(unknown& u, const iwarp::start_frame& f);
  void drop(unknown& u);
  void forget(unknown& u);

  const int socket_;
  const std::size_t most_;
  std::list<std::unique_ptr<unknown>> unknown_;
  bool paused_ = false; // further connections stay in the socket's queue
};

} // namespace soft

#endif
