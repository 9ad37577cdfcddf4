// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

struct send_options {
  std::filesystem::path file;
  std::string address; ///< ADDRESS[:PORT]; IPv6 in brackets if a port follows.
  std::uint32_t window = 8;
  std::uint32_t chunk = 1024 * 1024;
};

/// Copies the file to the server. Throws `copy_error`.
boost::asio::awaitable<void> send_file(boost::asio::io_context& io, boost::asio::thread_pool& pool,
                                       const send_options& options);
