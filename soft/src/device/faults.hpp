// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_FAULTS_HPP
#define SOFT_DEVICE_FAULTS_HPP

#include "device/in_force.hpp"
#include "device/objects.hpp"

namespace soft {

struct queue_pair;

/// The faults of `place::now`.
void happen_now();
/// Raises an event of a queue pair, of its queues, or of the device in all its contexts. The engine
/// must be locked.
void raise_event(queue_pair& qp, ibv_event_type what);

/// For a call that makes an object, or changes one: 0, or the error with which it fails. Waits if
/// the settings delay the call. The engine must not be locked.
int refuse(const ibv_context* c, place call);
/// For a call that has no faults of its own: 0; or EIO, as the device was removed.
int refuse_removed(const ibv_context* c);
/// As `refuse`, for a call that creates an object, which takes the time of the personality.
int refuse_creation(const ibv_context* c, place call);
/// For rdma_connect(3): the reason for which the request is rejected, or 0. Waits likewise.
int refuse_connecting();
/// For a call that destroys an object. 0; or EIO: the device was removed, and
/// RDMAV_ALLOW_DISASSOC_DESTROY is not set (ibv_open_device(3)). An adapter gives this error before
/// any other, as the kernel no longer knows its objects (ib_uverbs_ioctl, ib_uverbs_write).
int refuse_destruction(const ibv_context* c);
template <class Object>
int refuse_destruction(const ibv_context* c, Object& o) {
  const int error = refuse_destruction(c);
  if (error != 0)
    o.count.lose();
  return error;
}

} // namespace soft

#endif
