// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/support/pair.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <memory>

namespace test {

/// Asio objects that a handler owns. Their destructors use services of the context, so the handler
/// must be destroyed before these services.
class context_property {
public:
  struct count {
    int alive = 0;
    int late = 0; ///< Objects destroyed after the services.
  };

  context_property(asio::io_context& io, count& c)
      : objects_(std::make_unique<objects>(io)),
        services_(asio::use_service<last_service>(io).alive),
        count_(&c) {
    ++c.alive;
  }
  context_property(context_property&&) noexcept = default;
  ~context_property() {
    if (!objects_)
      return;
    --count_->alive;
    if (*services_)
      return;
    ++count_->late;
    static_cast<void>(objects_.release()); // their destructors would use freed memory
  }

private:
  struct objects {
    explicit objects(asio::io_context& io)
        : acceptor(io, {asio::ip::address_v4::loopback(), 0}),
          timer(io, asio::steady_timer::time_point::max()) {}
    asio::ip::tcp::acceptor acceptor;
    asio::steady_timer timer;
  };

  // Services are destroyed in the reverse order of their creation.
  struct last_service final : asio::execution_context::service {
    using key_type = last_service;
    inline static asio::execution_context::id id;

    explicit last_service(asio::execution_context& context) : service(context) {}
    ~last_service() override { *alive = false; }
    void shutdown() override {}

    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
  };

  std::unique_ptr<objects> objects_; // null after a move
  std::shared_ptr<bool> services_;
  count* count_;
};

} // namespace test
