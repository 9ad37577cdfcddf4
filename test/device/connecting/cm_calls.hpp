// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <rdma/rdma_cma.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

namespace test {

/// The calls of librdmacm that may fail.
enum class cm_call {
  create_id,
  bind_address,
  listen,
  resolve_address,
  resolve_route,
  init_queue_pair,
  connect,
  accept,
  establish,
  notify,
  reject,
  disconnect,
  migrate
};

template <class>
class hook;

/// A function of a test, called by any thread. Nothing is called if there is none. Replacing the
/// function waits until no thread is inside it.
template <class Result, class... Arguments>
class hook<Result(Arguments...)> {
public:
  hook& operator=(std::function<Result(Arguments...)> f) {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return inside_ == 0; });
    function_ = std::move(f);
    return *this;
  }
  Result operator()(Arguments... arguments) {
    const visit here(*this);
    return here.exists ? function_(std::forward<Arguments>(arguments)...) : Result();
  }

private:
  struct visit {
    explicit visit(hook& h) : of(h) {
      const std::lock_guard lock(of.mutex_);
      exists = of.function_ != nullptr;
      of.inside_ += exists ? 1 : 0;
    }
    visit(const visit&) = delete;
    ~visit() {
      const std::lock_guard lock(of.mutex_);
      if (exists && --of.inside_ == 0)
        of.left_.notify_all();
    }

    hook& of;
    bool exists;
  };

  std::mutex mutex_; // not locked while the function runs
  std::condition_variable left_;
  int inside_ = 0; // threads inside the function
  std::function<Result(Arguments...)> function_;
};

/// Called before each of the calls, on the same thread; the id is null if the call has none yet.
/// If a value other than 0 is returned, the call fails with this errno value. The library calls
/// rdma_connect(3) on a thread of its own.
extern hook<int(cm_call, const rdma_cm_id*)> before_cm_call;

/// Called after rdma_connect(3) has succeeded, before it returns.
extern hook<void()> after_connecting;

/// Changes the parameters that rdma_connect(3) and rdma_accept(3) send to the peer.
extern hook<void(cm_call, rdma_conn_param&)> edit_parameters;

/// Called before rdma_destroy_id(3).
extern hook<void(const rdma_cm_id*)> before_destruction;

/// Called before rdma_get_cm_event(3): as `before_cm_call`.
extern hook<int()> before_reading;

/// Changes an event that rdma_get_cm_event(3) returns, and may set errno.
extern hook<void(rdma_cm_event&)> edit_event;

/// Called after rdma_ack_cm_event(3) with the event's type.
extern hook<void(rdma_cm_event_type)> after_acknowledgement;

/// Resets the functions above when it is destroyed. A test declares it behind what its functions
/// use.
struct hooks {
  hooks() = default;
  hooks(const hooks&) = delete;
  ~hooks();
};

/// The number of events that rdma_get_cm_event(3) has returned.
extern std::atomic<int> events_read;

/// Waits until the kernel knows that the peer of the id has given up: the id then has no next state
/// (EINVAL). False if the kernel does not learn that, as on iWARP. `before_cm_call` is not called.
bool wait_until_given_up(rdma_cm_id* id);

} // namespace test
