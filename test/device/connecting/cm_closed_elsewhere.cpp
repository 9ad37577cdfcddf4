// SPDX-License-Identifier: BSL-1.0
// A queue pair that one thread closes while another takes the next step to connect it, and ids that
// a thread of the library's destroys.
#include "catch.hpp"
#include "device/connecting/cm_calls.hpp"
#include "device/connecting/cm_support.hpp"
#include "queues/queue_pair_impl.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace test::cm_closed_elsewhere_tests {
namespace {

/// Closes the chosen side's queue pair in its n-th call of librdmacm, on another thread. The call
/// is made when the closing has begun; both then continue in parallel.
class closing_in_a_step {
public:
  closing_in_a_step(bool connecting, int step) : connecting_(connecting), step_(step) {
    before_cm_call = [this](cm_call call, const rdma_cm_id* id) {
      on_call(call, id);
      return 0;
    };
  }

  void run() {
    listener_.async_accept(b_, accepted_.handler());
    initiator_.async_connect(a_, listener_.local_endpoint(), connected_.handler());
    io_.run();
    before_cm_call = nullptr; // no thread is inside it any more
    if (closer_.joinable())
      closer_.join();
  }

  bool closed() const { return calls_ > step_; }
  /// Whether the peer may have been reached before the queue pair was closed.
  bool offered() const { return offered_; }
  const connection& result() const { return connecting_ ? connected_ : accepted_; }
  const connection& peer_result() const { return connecting_ ? accepted_ : connected_; }

private:
  void on_call(cm_call call, const rdma_cm_id* id) {
    if (call == cm_call::resolve_address)
      connecting_id_ = id;
    if ((id == connecting_id_) != connecting_)
      return;
    if (calls_++ == step_)
      begin_to_close();
    offered_ = offered_ || call == cm_call::connect || call == cm_call::accept;
  }

  // This thread is inside of the attempt, so closing waits for it, but first makes the queue pair
  // refuse operations. Then the other side gives up too.
  void begin_to_close() {
    queue_pair& qp = connecting_ ? a_ : b_;
    const auto impl = qp.impl();
    closer_ = std::thread([this, &qp] {
      qp.close();
      asio::post(io_, [this] {
        listener_.close();
        initiator_.cancel();
      });
    });
    while (impl->state() != queue_pair_state::closed)
      std::this_thread::yield();
  }

  const bool connecting_;
  const int step_;
  device dev_ = open_device();
  protection_domain pd_{dev_};
  connection accepted_, connected_;
  asio::io_context io_;
  acceptor listener_{io_, endpoint(device_address(dev_), 0)};
  connector initiator_{io_};
  queue_pair a_{io_, pd_}, b_{io_, pd_};
  std::thread closer_;
  const rdma_cm_id* connecting_id_ = nullptr;
  int calls_ = 0;
  bool offered_ = false;
  const hooks functions_; // reset first
};

} // namespace

TEST_CASE("a queue pair is closed beside each step that connects it") {
  const connections_check nothing_left;
  const bool connecting = GENERATE(true, false);
  INFO((connecting ? "the connecting one" : "the accepting one"));
  for (int step = 0, closed = true; closed; ++step) {
    INFO("in call " << step);
    closing_in_a_step attempt(connecting, step);
    attempt.run();
    closed = attempt.closed();
    const connection& result = attempt.result();
    INFO(describe(result.ec) << ", the peer " << describe(attempt.peer_result().ec));
    CHECK(result.calls == 1);
    CHECK(attempt.peer_result().calls == 1);
    // The connection may have been made before the close.
    CHECK((result.ec == asio::error::operation_aborted || (attempt.offered() && !result.ec)));
    if (!closed) {
      CHECK(result.succeeded());
      CHECK(step >= 3);
    }
  }
}

// As on rxe, if the peer ends its side at the same time.
TEST_CASE("a context does other work while rdma_destroy_id blocks", "[h17]") {
  const connections_check nothing_left;
  std::atomic<bool> ending = false, may_return = false;
  std::atomic<int> blocked = 0, returned = 0;
  const hooks functions{};
  std::optional<meeting> m(std::in_place);
  m->meet();
  const auto wait_for = [](const auto& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  before_destruction = [&, listening = m->listener->native_handle()](const rdma_cm_id* id) {
    if (id == listening || may_return)
      return;
    ++blocked;
    wait_for([&] { return may_return.load(); });
    ++returned;
  };
  m->a.close();
  m->b.close();
  m->a.open(m->pd);
  m->b.open(m->pd);
  m->accepted = m->connected = {};
  m->meet();
  CHECK(m->carries("meanwhile"));
  wait_for([&] { return blocked == 2; });
  CHECK(blocked == 2);
  CHECK(returned == 0);

  std::thread releasing([&] {
    while (!ending)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::this_thread::sleep_for(std::chrono::milliseconds(5)); // no check depends on it
    may_return = true;
  });
  ending = true;
  m.reset(); // waits until the ids are destroyed
  CHECK(may_return);
  releasing.join();
}

} // namespace test::cm_closed_elsewhere_tests
