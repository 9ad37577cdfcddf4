// SPDX-License-Identifier: BSL-1.0
// A chat over WebSocket: the session and the member are templates of the stream, TCP's or RDMA's.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>

#include <iostream>
#include <set>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable, asio::deferred, asio::ip::tcp, asio_rdma::error_code, asio_rdma::memory_pool;

namespace {
constexpr std::size_t longest_line = 4096, most_unsent = 100;
const auto as_result = asio::as_tuple(deferred);

/// Passes each line that arrives to the function, until the connection ends.
awaitable<error_code> read_lines(auto& socket, auto function) {
  for (;;) {
    beast::flat_buffer buffer;
    const auto [ec, n] = co_await socket.async_read(buffer, as_result);
    if (ec)
      co_return ec;
    function(beast::buffers_to_string(buffer.data()));
  }
}

using line = std::shared_ptr<const std::string>;
struct member { // by whatever stream
  ~member() { all.erase(this); }
  std::set<member*>& all;
  asio::experimental::channel<void(error_code, line)> unsent;
  std::function<void()> disconnect;
};
using room = std::set<member*>;

void say(const room& r, const std::string& text) {
  const auto l = std::make_shared<const std::string>(text);
  for (member* m : r)
    if (!m->unsent.try_send(error_code(), l))
      m->disconnect(); // it does not read
}

awaitable<void> write_lines(auto& socket, member& m) {
  for (;;) {
    const line l = co_await m.unsent.async_receive(deferred);
    co_await socket.async_write(asio::buffer(*l), deferred); // if it fails, a read fails, too
  }
}

awaitable<void> session(auto stream, room& r) {
  websocket::stream<decltype(stream)> socket(std::move(stream));
  socket.set_option(websocket::stream_base::timeout::suggested(beast::role_type::server));
  socket.read_message_max(longest_line);
  co_await socket.async_accept(deferred);
  std::string name;
  auto first = asio::dynamic_buffer(name);
  co_await socket.async_read(first, deferred);
  member m{r, {socket.get_executor(), most_unsent}, [&] {
             beast::get_lowest_layer(socket).close();
           }};
  r.insert(&m);
  say(r, name + " has joined");
  co_await (read_lines(socket, [&](const std::string& text) { say(r, name + ": " + text); }) ||
            write_lines(socket, m));
  say(r, name + " has left");
}

awaitable<void> serve(tcp::acceptor& acceptor, room& r) {
  for (;;)
    co_spawn(acceptor.get_executor(), session(co_await acceptor.async_accept(deferred), r),
             asio::detached);
}

awaitable<void> serve(asio_rdma::acceptor& acceptor, memory_pool pool, room& r) {
  for (;;) {
    auto stream = co_await acceptor.async_accept<asio_rdma::stream>(pool, deferred);
    co_spawn(acceptor.get_executor(), session(std::move(stream), r), asio::detached);
  }
}

awaitable<void> write_input(auto& socket) {
  asio::posix::stream_descriptor input(co_await asio::this_coro::executor, ::dup(STDIN_FILENO));
  std::string text;
  for (auto lines = asio::dynamic_buffer(text, longest_line);;) {
    const auto [ec, n] = co_await asio::async_read_until(input, lines, '\n', as_result);
    if (ec)
      break;
    co_await socket.async_write(asio::buffer(text, n - 1), deferred);
    text.erase(0, n);
  }
  co_await socket.async_close(websocket::close_code::normal, deferred);
}

awaitable<void> join(auto stream, std::string name) {
  websocket::stream<decltype(stream)> socket(std::move(stream));
  co_await socket.async_handshake("chat", "/", deferred);
  co_await socket.async_write(asio::buffer(name), deferred);
  const auto end = co_await (
      read_lines(socket, [](const std::string& text) { std::cout << text << std::endl; }) ||
      write_input(socket));
  if (end.index() == 0 && std::get<0>(end) != websocket::error::closed)
    throw boost::system::system_error(std::get<0>(end));
}

awaitable<void> run(std::string how, tcp::endpoint where, std::string name, room& r) {
  const auto executor = co_await asio::this_coro::executor;
  if (how == "tcp") {
    tcp::socket socket(executor);
    co_await socket.async_connect(where, deferred);
    co_return co_await join(std::move(socket), name);
  }
  const auto device = asio_rdma::device::open_for(where.address());
  const memory_pool pool{asio_rdma::protection_domain(device)};
  if (how == "rdma") {
    asio_rdma::stream stream(executor, pool);
    asio_rdma::connector connector(executor);
    co_await connector.async_connect(stream, where, deferred);
    co_return co_await join(std::move(stream), name);
  }
  tcp::acceptor by_tcp(executor, where);
  where.port(std::uint16_t(where.port() == 0 ? 0 : where.port() + 1)); // it may be one of TCP, too
  asio_rdma::acceptor by_rdma(executor, where);
  std::cout << name << ": TCP port " << by_tcp.local_endpoint().port() << " RDMA port "
            << by_rdma.local_endpoint().port() << std::endl;
  co_await (serve(by_tcp, r) && serve(by_rdma, pool, r));
}

} // namespace

int main(int argc, char* argv[]) try {
  const std::string how = argc == 5 ? argv[1] : "";
  if (how != "serve" && how != "tcp" && how != "rdma")
    throw std::invalid_argument("usage: chat serve|tcp|rdma ADDRESS PORT NAME (RDMA: PORT + 1)");
  const tcp::endpoint where(asio::ip::make_address(argv[2]), std::uint16_t(std::stoul(argv[3])));
  room r; // outlives the sessions
  asio::io_context io(1);
  auto done = co_spawn(io, run(how, where, argv[4], r), asio::use_future);
  io.run();
  done.get();
} catch (const std::exception& e) {
  std::cerr << "chat: " << e.what() << std::endl;
  return 2;
}
