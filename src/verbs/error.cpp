// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/device.hpp>
#include <asio_rdma/error.hpp>

#include "core/described_error.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace asio_rdma {
namespace {

namespace errc = boost::system::errc;

// Categories of one id compare equal (boost::system::error_category).
constexpr unsigned long long library_id = 0x6a3f91d2'5c8e07b4;

std::string names_of_devices() {
  std::string all;
  for (const auto& d : device::list())
    all += (all.empty() ? "" : ", ") + d.name;
  return all.empty() ? "there is none" : "there are: " + all;
}

// Returns the best address of each device.
std::string usable_addresses() {
  std::string all;
  for (const auto& d : device::list()) {
    if (!d.port_active)
      continue;
    error_code ec;
    const device opened = device::open(d.name, ec);
    const auto addresses = ec ? std::vector<asio::ip::address>() : opened.addresses();
    if (!addresses.empty())
      all += (all.empty() ? "" : ", ") + addresses.front().to_string() + " (" + d.name + ")";
  }
  return all.empty() ? "there is none with another address either"
                     : "use the address of one: " + all;
}

class library_category_type : public boost::system::error_category {
protected:
  ~library_category_type() = default;

public:
  library_category_type() noexcept : error_category(library_id) {}

  const char* name() const noexcept override { return "asio_rdma"; }

  std::string message(int value) const override {
    switch (static_cast<error>(value)) {
    case error::no_device:
      return "no usable RDMA device: none is present or none has an active port "
             "(rdma link shows them; a software device is made by "
             "'rdma link add rxe0 type rxe netdev <interface>', and without rights by soft/run or "
             "asio_rdma_soft_run before the command)";
    case error::device_not_found:
      return "no RDMA device of that name; " + names_of_devices();
    case error::device_permission:
      return "the RDMA device's file may not be opened (check the permissions of "
             "/dev/infiniband/uverbs* and rdma_cm)";
    case error::device_fatal:
      return "the RDMA device reported a fatal error";
    case error::device_removed:
      return "the RDMA device was removed (open the device that replaces it), or its driver "
             "failed a call (EIO)";
    case error::memory_limit:
      return "memory could not be registered; it may exceed the limit on locked memory "
             "(raise it: ulimit -l unlimited, or memlock in limits.conf)";
    case error::no_gid:
      return "the RDMA device's port has no GID for that address "
             "(is the address assigned to the device's network interface?); " +
             usable_addresses();
    case error::wrong_device:
      return "the address belongs to another RDMA device than the queue pair";
    case error::loopback_address:
      return "no RDMA device serves the loopback address; " + usable_addresses();
    case error::too_many_buffers:
      return "more buffers in one operation than it takes, or than the queue pair's options allow";
    case error::remote_range:
      return "the operation reaches beyond the remote buffer";
    case error::misaligned:
      return "the remote address is not aligned: an atomic operation's must be a multiple of 8";
    case error::rejected:
      return "the peer rejected the connection";
    case error::peer_not_listening:
      return "nothing listens at that address and port";
    case error::unreachable:
      return "the address could not be reached over RDMA (no route, or no answer)";
    case error::incompatible_peer:
      return "the peer speaks another protocol or version";
    case error::protocol_violation:
      return "the peer broke the protocol";
    case error::queue_pair_fatal:
      return "the RDMA device reported a fatal error of the queue pair";
    case error::completion_queue_full:
      return "the completion queue has no room for the queue pair's send and receive depth";
    case error::pool_limit:
      return "the memory pool has reached its limit "
             "(release buffers, or raise memory_pool_options::limit)";
    case error::buffer_in_use:
      return "the buffer is in use: another operation writes it, or this one would write what "
             "another reads (wait with async_read_access or async_write_access)";
    case error::lease_expired:
      return "the lease on the remote memory has ended (renew it in time)";
    case error::lease_revoked:
      return "the owner of the remote memory has taken it back";
    case error::rights_refused:
      return "the owner of the remote memory does not give these access rights";
    case error::remote_memory_limit:
      return "the owner of the remote memory gives this peer no more bytes or grants";
    case error::node_unknown:
      return "no node of that id has been joined, or the remote pointer is null";
    case error::node_in_use:
      return "another node of the global memory has that id";
    case error::owner_dead:
      return "the holder of the lock, or its next waiter, has died; the lock cannot be acquired "
             "any more";
    case error::device_keeps_memory:
      return "the RDMA device did not release the operation's memory and may still use it "
             "(do not free it or use it for anything else)";
    case error::shared_receives_full:
      return "the shared receives are promised to others "
             "(close some of those, or raise shared_receives_options::receives)";
    case error::shared_receives_closed:
      return "the receives that this and others shared have been closed";
    case error::peer_out_of_memory:
      return "the peer has no memory for the message, or for the memory requested "
             "(raise its memory_pool_options::limit, or its limit on locked memory)";
    case error::peer_message_limit:
      return "the message is longer than the peer accepts "
             "(raise its connection_options::max_message)";
    case error::device_file_missing:
      return "the RDMA device's file is missing in /dev/infiniband "
             "(a container needs it: docker run --device=/dev/infiniband)";
    case error::provider_missing:
      return "libibverbs has no provider for the RDMA device "
             "(install it: ibverbs-providers on Debian, libibverbs on Fedora)";
    case error::module_missing:
      return "a module of the kernel is not loaded (modprobe ib_uverbs rdma_ucm)";
    case error::peer_access_refused:
      return "this side's RDMA device has refused a request of the peer's (a key or a range that "
             "the peer may not access, or a request that is not valid)";
    }
    return "unknown asio_rdma error";
  }

  boost::system::error_condition default_error_condition(int value) const noexcept override {
    switch (static_cast<error>(value)) {
    case error::no_device:
    case error::device_not_found:
    case error::device_file_missing:
    case error::provider_missing:
    case error::module_missing:
      return make_error_condition(errc::no_such_device);
    case error::device_permission:
      return make_error_condition(errc::permission_denied);
    case error::device_fatal:
    case error::device_removed:
    case error::queue_pair_fatal:
      return make_error_condition(errc::io_error);
    case error::memory_limit:
    case error::pool_limit:
    case error::peer_out_of_memory:
      return make_error_condition(errc::not_enough_memory);
    case error::peer_message_limit:
      return make_error_condition(errc::message_size);
    case error::no_gid:
    case error::loopback_address:
      return make_error_condition(errc::address_not_available);
    case error::wrong_device:
    case error::too_many_buffers:
    case error::misaligned:
      return make_error_condition(errc::invalid_argument);
    case error::remote_range:
      return make_error_condition(errc::result_out_of_range);
    case error::rejected:
    case error::peer_not_listening:
      return make_error_condition(errc::connection_refused);
    case error::unreachable:
      return make_error_condition(errc::host_unreachable);
    case error::incompatible_peer:
    case error::protocol_violation:
      return make_error_condition(errc::protocol_error);
    case error::completion_queue_full:
    case error::remote_memory_limit:
    case error::shared_receives_full:
      return make_error_condition(errc::no_buffer_space);
    case error::shared_receives_closed:
      return make_error_condition(errc::connection_aborted);
    case error::node_unknown:
      return make_error_condition(errc::not_connected);
    case error::node_in_use:
      return make_error_condition(errc::address_in_use);
    case error::owner_dead:
      return make_error_condition(errc::owner_dead);
    case error::device_keeps_memory:
      return make_error_condition(errc::device_or_resource_busy);
    case error::buffer_in_use:
      return make_error_condition(errc::device_or_resource_busy);
    case error::lease_expired:
    case error::lease_revoked:
    case error::rights_refused:
    case error::peer_access_refused:
      return make_error_condition(errc::permission_denied);
    }
    return boost::system::error_category::default_error_condition(value);
  }
};

class plain_category final : public library_category_type {};

// The category of one error with a text of its own.
class described_category final : public library_category_type {
public:
  explicit described_category(std::string text) : text_(std::move(text)) {}

  std::string message(int) const override { return text_; }

private:
  std::string text_;
};

// Error codes point to their categories, so the texts are never released.
class descriptions {
public:
  // Null if there are too many, of all errors or of this one.
  const boost::system::error_category* find(error e, const std::string& text,
                                            std::size_t most_of_e) {
    const std::pair key(static_cast<int>(e), text);
    const std::lock_guard guard(mutex_);
    const auto found = made_.find(key);
    if (found != made_.end())
      return found->second.get();
    const auto of_e = std::count_if(made_.begin(), made_.end(),
                                    [&key](const auto& m) { return m.first.first == key.first; });
    if (made_.size() == detail::most_texts || static_cast<std::size_t>(of_e) >= most_of_e)
      return nullptr;
    return made_.emplace(key, std::make_unique<described_category>(text)).first->second.get();
  }

private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::unique_ptr<described_category>> made_;
};

class completion_category_type final : public boost::system::error_category {
public:
  const char* name() const noexcept override { return "ibv_wc_status"; }

  std::string message(int value) const override {
    switch (static_cast<ibv_wc_status>(value)) {
    case IBV_WC_LOC_LEN_ERR:
      return "a received message is longer than the buffer posted for it";
    case IBV_WC_LOC_QP_OP_ERR:
      return "the device could not use a buffer of this side (rxe and siw report so: a wrong local "
             "key or a closed region; rxe: a receive that is shorter than the message, too; siw: "
             "the connection ended while it sent, too)";
    case IBV_WC_LOC_PROT_ERR:
      return "a local buffer is not within registered memory, or has not the access (keep the "
             "region until the operation ends; memory to be filled needs access::local_write)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer posted no receive in time (RNR retries exceeded): start receives before "
             "connecting, or use a connection";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer does not answer (transport retries exceeded)";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's memory refused the access (key, range or rights)";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's queue pair refused the request (an operation that it does not "
             "permit, or a message longer than its receive)";
    case IBV_WC_REM_OP_ERR:
      return "the peer could not complete the operation (its receive has an invalid buffer, or on "
             "rxe too small a one)";
    case IBV_WC_MW_BIND_ERR:
      return "binding the memory window failed (range, rights or key)";
    default:
      return ibv_wc_status_str(static_cast<ibv_wc_status>(value));
    }
  }

  boost::system::error_condition default_error_condition(int value) const noexcept override {
    switch (static_cast<ibv_wc_status>(value)) {
    case IBV_WC_SUCCESS:
      return {};
    case IBV_WC_LOC_LEN_ERR:
      return make_error_condition(errc::message_size);
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_MW_BIND_ERR:
      return make_error_condition(errc::invalid_argument);
    case IBV_WC_LOC_PROT_ERR:
      return make_error_condition(errc::bad_address);
    case IBV_WC_WR_FLUSH_ERR:
      return make_error_condition(errc::operation_canceled);
    case IBV_WC_BAD_RESP_ERR:
      return make_error_condition(errc::protocol_error);
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return make_error_condition(errc::permission_denied);
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return make_error_condition(errc::connection_aborted);
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return make_error_condition(errc::timed_out);
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return make_error_condition(errc::no_buffer_space);
    default:
      return make_error_condition(errc::io_error);
    }
  }
};

} // namespace

const boost::system::error_category& library_category() noexcept {
  static const plain_category instance;
  return instance;
}

const boost::system::error_category& completion_category() noexcept {
  static const completion_category_type instance;
  return instance;
}

error_code detail::described(error e, const std::string& text, std::size_t most_of_e) {
  static descriptions& all = *new descriptions; // never destroyed
  const auto* const category = all.find(e, text, most_of_e);
  return category != nullptr ? error_code(static_cast<int>(e), *category) : e;
}

void detail::throw_error(const error_code& ec, const char* what) { throw system_error(ec, what); }

void detail::throw_error(const error_code& ec, const char* what, const std::string& object) {
  throw system_error(ec, std::string(what) + ' ' + object);
}

} // namespace asio_rdma
