// SPDX-License-Identifier: BSL-1.0
// Messages of a connection.
#include "connecting.hpp"
#include "end.hpp"
#include "memory.hpp"

#include <asio_rdma/connection.hpp>

#include <algorithm>

namespace perf {

using namespace asio_rdma;

namespace {

/// Messages that are longer are received into memory of this program, into which the device reads
/// them. Shorter ones are received with their own memory, because that copies nothing.
const std::uint64_t longest_whole = connection_options().max_receive_size;

connection_options message_options(const request& r) {
  connection_options o;
  o.max_message = std::max<std::uint64_t>(r.size, 4096);
  return o;
}

/// The common part of both ends.
template <class Base>
class messages_end : public Base {
protected:
  messages_end(const side& s, const request& r, std::uint32_t count)
      : Base(s.io), size_(r.size), memory_(s, r.size, count), connection_(s.io) {
    connection_.open(memory_.pool(), s.queue(r.how), message_options(r));
  }

  /// Receives a message, and calls `f` with a view of it, which is valid during the call unless the
  /// message is a long one.
  template <class F>
  void receive(std::uint64_t slot, F f) {
    if (size_ > longest_whole) {
      const mutable_buffer to = memory_[slot];
      connection_.async_receive(to, this->counted([f, to](std::size_t n) mutable {
        f(registered_buffer(), to.first(n));
      }));
    } else {
      connection_.async_receive(this->counted(
          [f](const message& m) mutable { f(m.payload, mutable_buffer(m.payload)); }));
    }
  }

  void stop() override { connection_.close(); }

  const std::uint64_t size_;
  pool_slots memory_;
  connection connection_;
};

class near_messages_end : public messages_end<near_end> {
public:
  near_messages_end(const side& s, const request& r, const memory_limits& m)
      : messages_end(s, r, r.of == metric::latency ? 2 : slots(r, m)),
        side_(s),
        latency_(r.of == metric::latency) {}

  awaitable<void> connect(const offer& to) override {
    co_await connect_to(side_, connection_, to.where);
  }
  void start() override {
    if (latency_)
      receive(1, [this](const registered_buffer&, const mutable_buffer&) { completed(); });
    connection_.async_send(const_buffer(memory_[latency_ ? 0 : started_++]),
                           counted([this](std::size_t) {
                             if (!latency_)
                               completed();
                           }));
  }

private:
  const side& side_;
  const bool latency_;
  std::uint64_t started_ = 0;
};

class far_messages_end : public messages_end<far_end> {
public:
  far_messages_end(const side& s, const request& r, const memory_limits& m)
      : messages_end(s, r, r.of == metric::latency ? 1 : slots(r, m)),
        latency_(r.of == metric::latency),
        door_(s) {}

  offer listening() const override { return {door_.where(), {}}; }
  awaitable<void> accept() override {
    co_await door_.accept(connection_);
    // As many as a connection reads long messages at a time.
    const std::uint32_t receives = latency_ ? 1 : connection_options().pulls;
    for (std::uint32_t i = 0; i < receives; ++i)
      keep_receiving(i);
  }

private:
  void stop() override {
    messages_end::stop();
    door_.close();
  }

  void keep_receiving(std::uint64_t slot) {
    receive(slot, [this, slot](const registered_buffer& owner, const mutable_buffer& m) {
      if (latency_) {
        if (owner.empty())
          connection_.async_send(const_buffer(m), counted([](std::size_t) {}));
        else
          connection_.async_send(owner, counted([](std::size_t) {}));
      }
      keep_receiving(slot);
      add_arrived(m.size());
    });
  }

  const bool latency_;
  door door_;
};

} // namespace

std::unique_ptr<near_end> near_messages(const side& s, const request& r, const memory_limits& m) {
  return std::make_unique<near_messages_end>(s, r, m);
}
std::unique_ptr<far_end> far_messages(const side& s, const request& r, const memory_limits& m) {
  return std::make_unique<far_messages_end>(s, r, m);
}

} // namespace perf
