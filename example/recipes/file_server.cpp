// SPDX-License-Identifier: BSL-1.0
// Sends files of a folder as messages. A thread reads a part of the file into registered memory,
// from which the device sends it. The client writes it from the memory into which its device has
// put it.
#include <asio_rdma/asio_rdma.hpp>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>

#include <iostream>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace asio = boost::asio;
using namespace asio::experimental::awaitable_operators;
using asio::awaitable, asio::deferred, asio::use_awaitable, asio::ip::tcp;
using asio_rdma::connection, asio_rdma::memory_pool, asio_rdma::registered_buffer;

namespace {

const std::string no_file = "there is no such file";

struct file {
  std::shared_ptr<std::FILE> stream = nullptr; // null: there is no such file
  std::uint64_t left = 0;                      // bytes
};

// [below]
/// Opens a regular file in the folder or below it. The kernel refuses a path that leads out of the
/// folder: by "..", by a symbolic link, or because it is absolute.
file open_below(int folder, const std::string& path) {
  open_how how{};
  how.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const int descriptor = int(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how));
  struct stat s;
  const bool is_file = ::fstat(descriptor, &s) == 0 && S_ISREG(s.st_mode);
  std::FILE* const stream = is_file ? ::fdopen(descriptor, "rb") : nullptr;
  if (stream == nullptr) {
    ::close(descriptor);
    return {};
  }
  return {{stream, std::fclose}, static_cast<std::uint64_t>(s.st_size)};
}
// [below]

/// Fills the buffer with the next bytes of the file.
std::size_t read(file& f, const registered_buffer& to) {
  const std::size_t bytes = std::min<std::uint64_t>(to.size(), f.left);
  if (std::fread(to.data(), 1, bytes, f.stream.get()) != bytes)
    throw std::runtime_error("a file cannot be read to its end");
  f.left -= bytes;
  return bytes;
}

/// Runs a function that blocks on a thread of the pool. It is not cancelled, but awaited: it uses
/// the caller's objects.
template <class Function>
awaitable<std::invoke_result_t<Function&>> on_disk(asio::thread_pool& disk, Function f) {
  const auto work = [&]() -> awaitable<std::invoke_result_t<Function&>> {
    co_return f();
  };
  auto no_slot = asio::bind_cancellation_slot(asio::cancellation_slot(), use_awaitable);
  co_return co_await co_spawn(disk, work, std::move(no_slot));
}

/// While the device sends a part, a thread reads the next one.
awaitable<void> send(connection& client, file& f, asio::thread_pool& disk) {
  constexpr std::size_t part = 1 << 20;
  registered_buffer now = client.pool().allocate(part), next = client.pool().allocate(part);
  std::size_t ready = co_await on_disk(disk, [&] { return read(f, now); });
  while (ready != 0) {
    const auto [sent, more] = co_await (client.async_send(now.first(ready), use_awaitable) &&
                                        on_disk(disk, [&] { return read(f, next); }));
    ready = more;
    std::swap(now, next);
  }
}

awaitable<void> session(connection client, int folder, asio::thread_pool& disk) {
  for (;;) {
    const auto [ec, request] = co_await client.async_receive(asio::as_tuple(deferred));
    if (ec == asio::error::eof)
      co_await client.async_close(deferred);
    if (ec)
      co_return;
    const std::string path(request.text());
    file f = co_await on_disk(disk, [&] { return open_below(folder, path); });
    const std::string answer = f.stream ? std::to_string(f.left) : no_file;
    co_await client.async_send(asio::buffer(answer), deferred);
    if (f.stream)
      co_await send(client, f, disk); // its exception ends the connection
  }
}

awaitable<void> serve(tcp::endpoint where, memory_pool pool, int folder, asio::thread_pool& disk) {
  asio_rdma::acceptor acceptor(co_await asio::this_coro::executor, where);
  std::cout << "listening on port " << acceptor.local_endpoint().port() << std::endl;
  const auto options = asio_rdma::connection_options().set_max_message(4096); // a path
  for (;;) {
    auto client = co_await acceptor.async_accept<connection>(pool, options, deferred);
    co_spawn(acceptor.get_executor(), session(std::move(client), folder, disk), asio::detached);
  }
}

awaitable<void> get(tcp::endpoint where, memory_pool pool, std::string path) {
  connection server(co_await asio::this_coro::executor, pool);
  asio_rdma::connector connector(server.get_executor());
  co_await connector.async_connect(server, where, deferred);
  co_await server.async_send(asio::buffer(path), deferred);
  const auto answer = co_await server.async_receive(deferred);
  const std::string text(answer.text());
  if (text == no_file)
    throw std::runtime_error(path + ": " + text);
  for (std::uint64_t left = std::stoull(text); left != 0;) {
    const auto part = co_await server.async_receive(deferred);
    left -= std::min<std::uint64_t>(left, part.size());
    std::cout << part.text();
  }
  co_await server.async_close(deferred);
}

} // namespace

int main(int argc, char* argv[]) try {
  const std::string command = argc == 5 ? argv[1] : "";
  if (command != "serve" && command != "get")
    throw std::invalid_argument("usage: file_server serve|get ADDRESS PORT FOLDER|PATH");
  const tcp::endpoint where(asio::ip::make_address(argv[2]), std::uint16_t(std::stoul(argv[3])));
  const auto device = asio_rdma::device::open_for(where.address());
  const memory_pool pool{asio_rdma::protection_domain(device)};
  std::cout.exceptions(std::ios::badbit | std::ios::failbit);
  asio::io_context io(1);
  asio::thread_pool disk(2); // is destroyed first: its threads use memory of the sessions
  const int folder = ::open(argv[4], O_PATH | O_DIRECTORY | O_CLOEXEC); // until the process ends
  if (command == "serve" && folder < 0)
    throw std::system_error(errno, std::generic_category(), argv[4]);
  co_spawn(io, command == "get" ? get(where, pool, argv[4]) : serve(where, pool, folder, disk),
           [](std::exception_ptr e) {
             if (e)
               std::rethrow_exception(e);
           });
  io.run();
} catch (const std::exception& e) {
  std::cerr << "file_server: " << e.what() << std::endl;
  return 2;
}
