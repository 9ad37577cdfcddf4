// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

struct serve_options {
  std::filesystem::path target; ///< A folder, or the name for every received file.
  std::string address = "0.0.0.0";
  std::uint16_t port = 0; ///< 0: any free port.
  bool once = false;
  /// The interval of `storing` messages: shorter than the client's patience.
  std::chrono::milliseconds tell_every = std::chrono::seconds(15);
};

/// Receives files until it is cancelled, or one if `once`. Throws `copy_error`: if `once`, that of
/// the copy.
boost::asio::awaitable<void> serve_files(boost::asio::io_context& io,
                                         boost::asio::thread_pool& pool,
                                         const serve_options& options);
