// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_DEVICE_OBJECTS_HPP
#define SOFT_DEVICE_OBJECTS_HPP

#include "engine/event_source.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <infiniband/verbs.h>
#include <list>
#include <mutex>
#include <sys/socket.h>
#include <vector>

namespace soft {

/// An address of this machine, as the device's GID.
struct gid_entry {
  ibv_gid gid;
  std::uint32_t interface;
};

/// The device that every process has.
ibv_device& device() noexcept;
/// The addresses of all interfaces that are up, 127.0.0.1 and ::1 included; at the same index as
/// long as the address exists.
std::vector<gid_entry> gids();
/// A GID of an IPv4 address is that address mapped to IPv6 (RoCE v2).
ibv_gid gid_of(const sockaddr& address) noexcept;
/// Index of a GID, or -1.
int index_of(const ibv_gid& gid);
/// The same, in a table that `gids` gave.
int index_in(const std::vector<gid_entry>& all, const ibv_gid& gid);
/// Whether a GID is that of an address of this machine; an address that was added less than 100 ms
/// ago may be missed. For addresses that a peer names: cheaper than `index_of`.
bool is_here(const ibv_gid& gid);
inline bool is_zero(const ibv_gid& g) noexcept {
  return g.global.subnet_prefix == 0 && g.global.interface_id == 0;
}
inline bool is_same(const ibv_gid& a, const ibv_gid& b) noexcept {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

/// An event of a queue pair, a queue or the device, until it is acknowledged.
class acknowledged_events {
public:
  void got() noexcept {
    std::lock_guard lock(mutex_);
    ++got_;
  }
  void acknowledged(unsigned n) noexcept {
    std::lock_guard lock(mutex_);
    acknowledged_ += n;
    changed_.notify_all();
  }
  /// Waits until all events that were got are acknowledged, as ibv_destroy_*(3) do.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return got_ == acknowledged_; });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t got_ = 0, acknowledged_ = 0;
};

struct channel;

/// An object that learns of the removal of its device.
struct removable {
  /// Called once, with the engine locked.
  virtual void on_removal() = 0;

protected:
  ~removable() = default;
};

/// A program's context on the device.
struct device_context : verbs_context {
  device_context();
  ~device_context();

  event_source<ibv_async_event> events;
  std::atomic<int> objects{0};      ///< domains, completion queues and channels
  std::atomic<bool> removed{false}; ///< the device is gone for this context
  // ---- guarded by the engine's lock
  std::vector<channel*> channels;
  std::list<removable*> ids; ///< of librdmacm
  bool is_given = false;     ///< by rdma_get_devices(3)
  bool is_leaving = false;   ///< the ids have the event of their removal
  bool is_told = false;      ///< of the removal
  bool is_in_use() const noexcept { return !ids.empty() || is_given; }
  // ---- guarded by the lock of the context that ids have
  ibv_pd* domain_of_ids = nullptr;
  int parts_in_domain = 0;

  ibv_context* base() noexcept { return &context; }
  static device_context& of(ibv_context* c) noexcept {
    return *static_cast<device_context*>(reinterpret_cast<verbs_context*>(
        reinterpret_cast<std::byte*>(c) - offsetof(verbs_context, context)));
  }
  /// Calls `f` with each context of this process.
  static void for_all(const std::function<void(device_context&)>& f);
};

/// Whether `c` is a context of this device, not of a real one.
inline bool is_soft(const ibv_context* c) noexcept { return c->device == &device(); }

/// The objects of this process, for `soft_get_resources`.
struct resource_counts {
  std::atomic<int> domains{0}, regions{0}, windows{0}, completion_queues{0},
      shared_receive_queues{0}, queue_pairs{0}, ids{0};
};
resource_counts& resources() noexcept;
/// Those of them that a removed device has refused to destroy, for `soft_get_lost_resources`.
resource_counts& lost_resources() noexcept;
/// Counts the object that it is a member of.
template <std::atomic<int> resource_counts::*Kind>
struct counted {
  counted() noexcept { ++(resources().*Kind); }
  ~counted() {
    --(resources().*Kind);
    if (is_lost_)
      --(lost_resources().*Kind);
  }
  counted(const counted&) = delete;
  counted& operator=(const counted&) = delete;
  /// A removed device has refused to destroy the object. The program may try again.
  void lose() noexcept {
    if (!is_lost_.exchange(true))
      ++(lost_resources().*Kind);
  }

private:
  std::atomic<bool> is_lost_{false};
};

struct domain : ibv_pd {
  counted<&resource_counts::domains> count;
  std::atomic<int> objects{0}; ///< regions, windows and queues
  static domain& of(ibv_pd* pd) noexcept { return *static_cast<domain*>(pd); }
};

/// The way of a datagram. A request has a copy, so that the program may destroy the handle after
/// the post.
struct datagram_way {
  ibv_ah_attr attributes;
  gid_entry source; ///< of the datagrams' headers
  bool is_local;    ///< the address is one of this machine
};
struct address_handle : ibv_ah, datagram_way {};

struct completion_queue;

struct channel : ibv_comp_channel {
  visited_descriptors wires; ///< of the queue pairs that receive to its completion queues
  event_source<completion_queue*> events{wires};
  static channel& of(ibv_comp_channel* c) noexcept { return *static_cast<channel*>(c); }
};

} // namespace soft

#endif
