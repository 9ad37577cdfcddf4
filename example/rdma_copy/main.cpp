// SPDX-License-Identifier: BSL-1.0
// rdma_copy: copies a file to another machine by RDMA WRITE.
#include "../one_line.hpp"
#include "client.hpp"
#include "copy_error.hpp"
#include "protocol.hpp"
#include "server.hpp"

#include <CLI/CLI.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/signal_set.hpp>

#include <csignal>
#include <exception>
#include <iostream>
#include <string>

namespace asio = boost::asio;

namespace {

constexpr int failed = 2;

int complain(const std::string& line) {
  std::cerr << "rdma_copy: " << one_line(line) << std::endl;
  return failed;
}

/// Runs one coroutine until it ends or a signal arrives.
template <class Start>
int run(Start start) {
  asio::io_context io(1);
  asio::thread_pool files(2);
  int status = 0;
  asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&](boost::system::error_code ec, int signal) {
    if (!ec) {
      status = 128 + signal;
      io.stop(); // unfinished coroutines are destroyed with the context
    }
  });
  asio::co_spawn(io, start(io, files), [&](std::exception_ptr e) {
    signals.cancel();
    try {
      if (e)
        std::rethrow_exception(e);
    } catch (const std::exception& error) {
      status = complain(as_copy_error(error).what());
    }
  });
  io.run();
  return status;
}

} // namespace

int main(int argc, char* argv[]) {
  CLI::App app("Copies a file to another machine by RDMA");
  app.require_subcommand(1);
  const CLI::AsSizeValue size(false);

  serve_options serve;
  serve.port = protocol::default_port;
  CLI::App& server = *app.add_subcommand("serve", "Take files and store them");
  server
      .add_option("target", serve.target, "Folder for received files, or name of the received file")
      ->required();
  server.add_option("--address", serve.address, "Address to listen at (default: any)");
  server.add_option("--port", serve.port,
                    "Port to listen at, 0 for any that is free (default 7471)");
  server.add_flag("--once", serve.once, "End after one file");

  send_options send;
  CLI::App& client = *app.add_subcommand("send", "Send a file to a server");
  client.add_option("file", send.file, "The file")->required();
  client.add_option("address", send.address, "ADDRESS[:PORT] of the server")->required();
  client.add_option("--window", send.window, "Chunks in flight (default 8)")
      ->check(CLI::Range(1u, protocol::max_window));
  client.add_option("--chunk", send.chunk, "Bytes of one RDMA WRITE, such as 64k (default 1M)")
      ->transform(size)
      ->check(CLI::Range(protocol::min_chunk, protocol::max_chunk));

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& e) {
    return complain(std::string(e.what()) + " (--help tells more)");
  }
  try {
    return run([&](asio::io_context& io, asio::thread_pool& files) {
      return server.parsed() ? serve_files(io, files, serve) : send_file(io, files, send);
    });
  } catch (const std::exception& e) {
    return complain(as_copy_error(e).what());
  }
}
