// SPDX-License-Identifier: BSL-1.0
// Requests that are put to the program before they are accepted (`accept_options::admit`).
#include "catch.hpp"
#include "connecting/handshake.hpp"
#include "device/connection/connection_support.hpp"

#include <asio_rdma/log.hpp>
#include <asio_rdma/stream.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/strand.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace test::admission_tests {
namespace {

using data_view = std::span<const std::byte>;

std::string text(data_view data) { return text_of({data.begin(), data.end()}); }

/// Whether the data are these bytes: an answer of the function.
auto is(std::string expected) {
  return [expected = std::move(expected)](data_view data, const endpoint&) {
    return text(data) == expected;
  };
}

connect_options with(std::string_view data) { return connect_options().set_data(bytes_of(data)); }

/// An acceptor, a connector, and objects that connect.
struct site {
  void until(const std::function<bool()>& condition) { test::until(io, condition); }
  endpoint where() const { return listener.local_endpoint(); }
  acceptor_statistics counted() const { return listener.statistics(); }

  template <class Object>
  void open(Object& o) {
    if constexpr (std::is_same_v<Object, queue_pair>)
      o.open(pd);
    else
      o.open(pool);
  }
  /// The end of an attempt to connect, by a new object: on iWARP a refused one has failed.
  template <class Object>
  test::connection attempt(const connect_options& how) {
    auto& o = std::get<std::deque<Object>>(objects).emplace_back(io);
    open(o);
    test::connection result;
    initiator.async_connect(o, where(), how, result.handler());
    until([&] { return result.done(); });
    return result;
  }
  test::connection attempt(std::string_view data) {
    return attempt<asio_rdma::connection>(with(data));
  }

  device dev = open_device();
  protection_domain pd{dev};
  memory_pool pool{pd};
  asio::io_context io{1};
  acceptor listener{io, endpoint(device_address(dev), 0)};
  connector initiator{io};
  std::tuple<std::deque<queue_pair>, std::deque<asio_rdma::connection>, std::deque<stream>> objects;
};

/// The texts of the refusals that are logged while it exists.
class refusals {
public:
  refusals() {
    set_log([this](const log_record& r) {
      const std::lock_guard lock(mutex_);
      if (r.event == log_event::refuse)
        texts_.emplace_back(r.text);
    });
  }
  refusals(const refusals&) = delete;
  ~refusals() { set_log({}); }

  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A function that ends in some way other than by returning true.
struct refusal {
  const char* reason; // in the log
  std::function<bool()> end;
};

} // namespace

TEMPLATE_TEST_CASE("the function decides by the connector's data and address, before anything is "
                   "made for the request",
                   "", queue_pair, asio_rdma::connection, stream) {
  site s;
  TestType accepting(s.io);
  s.open(accepting);
  std::vector<std::string> seen;
  std::vector<endpoint> from;
  std::size_t bytes = 0;
  accept_options how;
  how.admit = [&](data_view data, const endpoint& remote) {
    seen.push_back(text(data));
    from.push_back(remote);
    CHECK(s.counted().handshakes == 0);
    if constexpr (std::is_same_v<TestType, queue_pair>)
      CHECK(accepting.state() == queue_pair_state::open);
    else
      CHECK(s.pool.statistics().bytes_in_use <= bytes); // of the connector's objects and this one
    return seen.back() == "let me in";
  };
  test::connection accepted;
  s.listener.async_accept(accepting, how, accepted.handler());

  const auto attempt = [&](std::string_view data) {
    auto& o = std::get<std::deque<TestType>>(s.objects).emplace_back(s.io);
    s.open(o);
    bytes = s.pool.statistics().bytes_in_use;
    test::connection result;
    s.initiator.async_connect(o, s.where(), with(data), result.handler());
    s.until([&] { return result.done() && (result.ec || accepted.done()); });
    return result;
  };
  CHECK(attempt("open sesame").ec == error::rejected);
  CHECK(attempt("").ec == error::rejected);
  CHECK_FALSE(accepted.done()); // it waits for the next request
  CHECK(s.counted().refused_admission == 2);
  CHECK(s.counted().requests == 2);
  CHECK(s.counted().waiting == 0);
  CHECK(s.counted().pending_accepts == 1);

  const test::connection connected = attempt("let me in");
  CHECK(connected.succeeded());
  REQUIRE(accepted.succeeded());
  CHECK(text_of(accepted.value.data) == "let me in");
  CHECK(seen == std::vector<std::string>{"open sesame", "", "let me in"});
  CHECK(from.back() == accepted.value.remote);
  CHECK(from.back() == connected.value.local);
  CHECK(s.counted().accepted == 1);
  CHECK(s.counted().refused_admission == 2);
}

TEST_CASE(
    "a function that throws any exception refuses the request, and the log tells the reason") {
  const refusal first = GENERATE(values<refusal>({
      {"accept_options::admit does not admit it",
       [] {
         return false;
       }},
      {"as it has thrown: no such user",
       []() -> bool {
         throw std::runtime_error("no such user");
       }},
      {"as it has thrown: std::bad_alloc",
       []() -> bool {
         throw std::bad_alloc();
       }},
      {"as it has thrown: an exception of an unknown type",
       []() -> bool {
         throw 7;
       }},
  }));
  const refusals log;
  site s;
  asio_rdma::connection accepting(s.io, s.pool);
  accept_options how;
  how.admit = [&, calls = 0](data_view, const endpoint&) mutable {
    return calls++ != 0 || first.end();
  };
  test::connection accepted;
  s.listener.async_accept(accepting, how, accepted.handler());
  CHECK(s.attempt("first").ec == error::rejected);
  CHECK_FALSE(accepted.done());
  CHECK(s.counted().refused_admission == 1);
  REQUIRE(log.texts().size() == 1);
  CHECK(has(log.texts()[0], "a request of " + s.where().address().to_string()));
  CHECK(has(log.texts()[0], first.reason));
  CHECK(s.attempt("second").succeeded());
  s.until([&] { return accepted.done(); });
  CHECK(accepted.succeeded());
}

TEST_CASE("good connectors are served while others are refused") {
  constexpr std::size_t good = 8, bad = 8, accepts = 3;
  site s;
  const accept_options how = accept_options().set_admit(is("good"));
  std::vector<asio_rdma::connection> served;
  std::function<void()> accept = [&] {
    s.listener.async_accept<asio_rdma::connection>(s.pool, connection_options(), how,
                                                   [&](error_code ec, asio_rdma::connection c) {
                                                     if (ec == asio::error::operation_aborted)
                                                       return;
                                                     CHECK_FALSE(ec);
                                                     served.push_back(std::move(c));
                                                     accept();
                                                   });
  };
  for (std::size_t i = 0; i != accepts; ++i)
    accept();
  std::size_t connected = 0, rejected = 0;
  std::deque<asio_rdma::connection> objects;
  for (std::size_t i = 0; i != good + bad; ++i)
    s.initiator.async_connect(objects.emplace_back(s.io, s.pool), s.where(),
                              with(i % 2 == 0 ? "bad" : "good"),
                              [&, i](const error_code& ec, const connection_info&) {
                                CHECK(ec == (i % 2 == 0 ? error::rejected : error_code()));
                                ++(ec ? rejected : connected);
                              });
  s.until([&] { return connected + rejected == good + bad && served.size() == good; });
  CHECK(connected == good);
  CHECK(rejected == bad);
  CHECK(s.counted().accepted == good);
  CHECK(s.counted().refused_admission == bad);
  CHECK(s.counted().pending_accepts == accepts);
  s.listener.close();
}

TEST_CASE("the data of the largest size arrive exactly, also if they end with zeros") {
  site s;
  const std::size_t most = data_limits(s.dev).request - 24;
  private_data seen;
  asio_rdma::connection accepting(s.io, s.pool);
  accept_options how;
  how.admit = [&](data_view data, const endpoint&) {
    seen.assign(data.begin(), data.end());
    return true;
  };
  test::connection accepted;
  s.listener.async_accept(accepting, how, accepted.handler());
  connect_options c;
  c.data.resize(most + 1, std::byte(1));
  CHECK(s.attempt<asio_rdma::connection>(c).ec == asio::error::message_size);
  c.data.resize(300);
  CHECK(s.attempt<asio_rdma::connection>(c).ec == asio::error::message_size);
  c.data.resize(GENERATE_COPY(std::size_t(0), std::size_t(5), most));
  if (!c.data.empty())
    c.data.back() = std::byte(0);
  CHECK(s.attempt<asio_rdma::connection>(c).succeeded());
  s.until([&] { return accepted.done(); });
  CHECK(seen == c.data);
  CHECK(accepted.value.data == c.data);
}

TEST_CASE("the data are in a request that the program takes, which admits by itself") {
  site s;
  outcome<connection_request> request;
  s.listener.async_wait_request(request.handler());
  asio_rdma::connection c(s.io, s.pool), accepting(s.io, s.pool);
  test::connection connected, accepted;
  s.initiator.async_connect(c, s.where(), with("it is I"), connected.handler());
  s.until([&] { return request.done(); });
  CHECK(request.value.info().data == bytes_of("it is I"));
  SECTION("accepted") {
    s.listener.async_accept(std::move(request.value), accepting, accepted.handler());
    s.until([&] { return connected.done() && accepted.done(); });
    CHECK(connected.succeeded());
    CHECK(connected.value.data.empty());
    CHECK(accepted.value.data == bytes_of("it is I"));
  }
  SECTION("a function that would not be called is an error") {
    const accept_options how = accept_options().set_admit(is("it is I"));
    s.listener.async_accept(std::move(request.value), accepting, how, accepted.handler());
    s.until([&] { return connected.done() && accepted.done(); });
    CHECK(accepted.ec == asio::error::invalid_argument);
    CHECK(connected.ec == error::rejected);
  }
}

TEST_CASE("a request of another protocol is not put to the function") {
  site s;
  int calls = 0;
  asio_rdma::connection accepting(s.io, s.pool);
  accept_options how;
  how.admit = [&](data_view, const endpoint&) {
    return ++calls != 0;
  };
  test::connection accepted;
  s.listener.async_accept(accepting, how, accepted.handler());
  CHECK(s.attempt<queue_pair>(with("a bare queue pair")).ec);
  CHECK(s.counted().refused_incompatible == 1);
  CHECK(calls == 0);
  CHECK(s.attempt("").succeeded());
  CHECK(calls == 1);
}

// A record with an address is for `async_exchange`: it fills the private data of RoCE, so it could
// not carry a proof.
TEMPLATE_TEST_CASE("a handshake with an address is refused, and does not bypass the function", "",
                   asio_rdma::connection, stream) {
  constexpr bool is_stream = std::is_same_v<TestType, stream>;
  site s;
  TestType accepting(s.io);
  s.open(accepting);
  std::vector<std::string> seen;
  test::connection accepted;
  s.listener.async_accept(accepting,
                          accept_options().set_admit([&](data_view data, const endpoint&) {
                            seen.push_back(text(data));
                            return seen.back() == "let me in";
                          }),
                          accepted.handler());
  detail::handshake h;
  h.what = is_stream ? detail::handshake::kind::stream : detail::handshake::kind::message;
  h.receives = 32;
  h.receive_size = 8192;
  h.max_reads = 4;
  h.address.emplace();
  h.address->address.number = 20;
  h.address->address.gid.raw[0] = 1;
  h.address->address.mtu = IBV_MTU_1024;
  connect_options how;
  const detail::handshake_bytes record = encode(h);
  how.data.assign(record.begin(), record.end());
  CHECK(s.attempt<queue_pair>(how).ec);
  CHECK(s.counted().refused_incompatible == 1);
  CHECK_FALSE(accepted.done());
  CHECK(s.attempt<TestType>(with("let me in")).succeeded());
  s.until([&] { return accepted.done(); });
  CHECK(accepted.succeeded());
  CHECK(seen == std::vector<std::string>{"let me in"});
}

TEST_CASE("the function is called on the acceptor's executor, after the initiating function") {
  site s;
  const auto strand = asio::make_strand(s.io);
  acceptor listener(strand, endpoint(device_address(s.dev), 0));
  asio_rdma::connection c(s.io, s.pool), accepting(s.io, s.pool);
  test::connection connected, accepted;
  s.initiator.async_connect(c, listener.local_endpoint(), connected.handler());
  s.until([&] { return listener.statistics().waiting == 1; });
  int calls = 0;
  accept_options how;
  how.admit = [&](data_view, const endpoint&) {
    CHECK(strand.running_in_this_thread());
    return ++calls != 0;
  };
  listener.async_accept(accepting, how, accepted.handler());
  CHECK(calls == 0);
  CHECK(listener.statistics().waiting == 1);
  CHECK(listener.statistics().pending_accepts == 1);
  s.until([&] { return connected.done() && accepted.done(); });
  CHECK(connected.succeeded());
  CHECK(calls == 1);
}

TEST_CASE("the function may close the acceptor, cancel the accept, or close its object") {
  site s;
  asio_rdma::connection accepting(s.io, s.pool), c(s.io, s.pool);
  test::connection accepted, connected, again;
  asio::cancellation_signal signal;
  std::function<bool()> during;
  int calls = 0;
  accept_options how;
  how.admit = [&](data_view, const endpoint&) {
    ++calls;
    return during ? std::exchange(during, nullptr)() : true;
  };
  const auto begin = [&](std::function<bool()> f) {
    during = std::move(f);
    s.listener.async_accept(accepting, how,
                            asio::bind_cancellation_slot(signal.slot(), accepted.handler()));
    s.initiator.async_connect(c, s.where(), connected.handler());
    s.until([&] { return accepted.done(); });
  };
  const auto accept_again = [&] {
    if (!accepting.is_open())
      accepting.open(s.pool);
    s.listener.async_accept(accepting, how, again.handler());
  };
  SECTION("close the acceptor") {
    begin([&] {
      s.listener.close();
      return true;
    });
    CHECK(accepted.ec == asio::error::operation_aborted);
    s.until([&] { return connected.done(); });
    CHECK(connected.ec == error::rejected);
    CHECK(calls == 1);
  }
  SECTION("cancel, and admit: the next accept asks again") {
    const bool all = GENERATE(true, false);
    begin([&] {
      if (all)
        s.listener.cancel();
      else
        signal.emit(asio::cancellation_type::total);
      return true;
    });
    CHECK(accepted.ec == asio::error::operation_aborted);
    CHECK_FALSE(connected.done());
    CHECK(s.counted().waiting == 1);
    CHECK(calls == 1);
    accept_again();
    s.until([&] { return connected.done() && again.done(); });
    CHECK(connected.succeeded());
    CHECK(again.succeeded());
    CHECK(calls == 2);
  }
  SECTION("cancel, and refuse: the request is refused") {
    begin([&] {
      s.listener.cancel();
      return false;
    });
    CHECK(accepted.ec == asio::error::operation_aborted);
    s.until([&] { return connected.done(); });
    CHECK(connected.ec == error::rejected);
    CHECK(s.counted().refused_admission == 1);
    accept_again();
    CHECK(s.attempt("").succeeded());
    s.until([&] { return again.done(); });
    CHECK(again.succeeded());
    CHECK(calls == 2);
  }
  SECTION("close the object: the next accept takes the request") {
    begin([&] {
      accepting.close();
      return true;
    });
    CHECK(accepted.ec == asio::error::bad_descriptor);
    CHECK_FALSE(connected.done());
    accept_again();
    s.until([&] { return connected.done() && again.done(); });
    CHECK(connected.succeeded());
    CHECK(again.succeeded());
  }
}

TEST_CASE("a cancelled accept leaves its request to the accept behind it") {
  site s;
  asio_rdma::connection first(s.io, s.pool), second(s.io, s.pool);
  test::connection cancelled, accepted;
  asio::cancellation_signal signal;
  accept_options how;
  how.admit = [&](data_view, const endpoint&) {
    signal.emit(asio::cancellation_type::terminal);
    return true;
  };
  s.listener.async_accept(first, how,
                          asio::bind_cancellation_slot(signal.slot(), cancelled.handler()));
  s.listener.async_accept(second, accepted.handler());
  CHECK(s.attempt("").succeeded());
  s.until([&] { return cancelled.done() && accepted.done(); });
  CHECK(cancelled.ec == asio::error::operation_aborted);
  CHECK(accepted.succeeded());
}

TEST_CASE("a context that is destroyed before it has called the function") {
  site s;
  bool called = false;
  test::connection connected;
  asio_rdma::connection c(s.io, s.pool);
  {
    asio::io_context io(1);
    const auto work = asio::make_work_guard(io); // an acceptor is none
    acceptor listener(io, endpoint(device_address(s.dev), 0));
    asio_rdma::connection accepting(io, s.pool);
    s.initiator.async_connect(c, listener.local_endpoint(), connected.handler());
    until({&s.io, &io}, [&] { return listener.statistics().waiting == 1; });
    accept_options how;
    how.admit = [&](data_view, const endpoint&) {
      return called = true;
    };
    listener.async_accept(accepting, how, [](error_code, const connection_info&) {});
  }
  s.until([&] { return connected.done(); });
  CHECK(connected.ec == error::rejected);
  CHECK_FALSE(called);
}

} // namespace test::admission_tests
