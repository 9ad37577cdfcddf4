// SPDX-License-Identifier: BSL-1.0
// The server of a chaos run: it compares everything that arrives, and sends it back.
#include "chaos/common.hpp"

#include <boost/asio/write.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace chaos {
namespace {

class server : process {
public:
  server(shared_ledger& s, std::size_t place) : process(s, place) {
    host();
    node_.listen(test::own_endpoint());
    messages_.open(test::own_endpoint());
    bytes_.open(test::own_endpoint());
    leases_.open(test::own_endpoint());
    server_entry& own = shared->server[place];
    own.nodes_port = node_.local_endpoint().port();
    own.messages_port = messages_.local_endpoint().port();
    own.bytes_port = bytes_.local_endpoint().port();
    own.leases_port = leases_.local_endpoint().port();
    ++own.starts;
    spawn(accept<asio_rdma::connection>(messages_));
    spawn(accept<asio_rdma::stream>(bytes_));
    spawn(accept<asio_rdma::connection>(leases_));
  }
  using process::run;

private:
  // The device may refuse registrations from the start on: the driver asks for 3 of a hundred.
  void host() {
    error_code ec;
    for (int i = 0; i < 100; ++i) {
      node_.host(1 << 20, ec);
      if (!ec)
        return;
    }
    report_wrong("no registration succeeds");
  }

  template <class Object>
  asio::awaitable<void> accept(asio_rdma::acceptor& from) {
    for (;;) {
      auto [ec, request] = co_await from.async_wait_request(token);
      look(ec);
      if (!ec)
        spawn(serve<Object>(from, std::move(request)));
    }
  }
  template <class Object>
  asio::awaitable<void> serve(asio_rdma::acceptor& from, asio_rdma::connection_request request) {
    Object object(io);
    error_code ec;
    if constexpr (std::same_as<Object, asio_rdma::connection>)
      object.open(pool, connection_options(), ec);
    else
      object.open(pool, stream_options(), ec);
    look(ec);
    if (ec)
      co_return;
    const asio_rdma::private_data data = request.info().data;
    const auto [failure, info] = co_await from.async_accept(std::move(request), object, token);
    look(failure);
    if (failure)
      co_return;
    if constexpr (std::same_as<Object, asio_rdma::stream>)
      co_await echo(object, label_of(data));
    else if (&from == &leases_)
      co_await lend(*this, object, label_of(data));
    else
      co_await echo(object);
  }

  static label label_of(const asio_rdma::private_data& data) {
    label l;
    if (data.size() >= sizeof l)
      std::memcpy(&l, data.data(), sizeof l);
    if (l.client < servers || l.client >= processes || l.bytes < sizeof l)
      report_wrong("the private data of a connection");
    return l;
  }

  asio::awaitable<void> echo(asio_rdma::connection& c) {
    for (std::uint32_t number = 0;; ++number) {
      const auto [ec, m] = co_await c.async_receive(token);
      look(ec);
      if (ec)
        co_return;
      label l;
      if (m.size() < sizeof l)
        report_wrong("the length of a message");
      std::memcpy(&l, m.payload.data(), sizeof l);
      if (l.number != number || l.bytes != m.size() || l.client >= processes || l.client < servers)
        report_wrong("the order or the length of messages");
      compare(l, sizeof l, m.bytes().subspan(sizeof l));
      ++mine.items;
      mine.bytes += m.size();
      if (l.one_way != 0) {
        shared->of[l.client].taken_one_way = l.one_way << 32 | (number + 1);
        continue;
      }
      const auto [failure, n] = co_await c.async_send(m, token);
      if (failure)
        co_return;
    }
  }

  asio::awaitable<void> echo(asio_rdma::stream& s, const label& l) {
    entry& client = shared->of[l.client];
    std::vector<std::byte> memory(65536);
    for (std::uint64_t at = 0;;) {
      const auto [ec, n] = co_await s.async_read_some(asio::buffer(memory), token);
      look(ec);
      if (ec) {
        check_end(l, client, at == l.bytes, ec);
        if (ec != asio::error::eof || at != l.bytes)
          client.end_early(l.number);
        error_code ignored;
        s.shutdown(asio::socket_base::shutdown_send, ignored);
        co_return;
      }
      if (at + n > l.bytes)
        report_wrong("more bytes than were sent");
      // The label is sent back as well.
      const std::size_t of_label = at < sizeof l ? std::min(sizeof l - at, std::uint64_t(n)) : 0;
      if (std::memcmp(reinterpret_cast<const char*>(&l) + std::min(at, std::uint64_t(sizeof l)),
                      memory.data(), of_label) != 0)
        report_wrong("the label of a stream");
      compare(l, at + of_label, std::span(memory).first(n).subspan(of_label));
      at += n;
      mine.bytes += n;
      const auto [failure, m] =
          co_await asio::async_write(s, asio::buffer(memory.data(), n), token);
      if (failure) {
        check_end(l, client, false, failure);
        client.end_early(l.number);
        co_return;
      }
    }
  }

  asio_rdma::acceptor messages_{io}, bytes_{io}, leases_{io};
  asio_rdma::global_memory node_{io, pool, server_node, memory_options()};
};

} // namespace

int serve(shared_ledger& shared, std::size_t place) {
  server(shared, place).run();
  return 0;
}

} // namespace chaos
