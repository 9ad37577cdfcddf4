// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/registered_buffer.hpp>
#include <boost/intrusive/set.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace asio_rdma::detail {

class connection_impl;

/// Memory that a connection has lent, in the list of all loans of the process. By this list a
/// program that has only the buffer finds the connections. Beginning and ending a loan allocate
/// nothing. Thread-safe.
class loan : public boost::intrusive::set_base_hook<
                 boost::intrusive::link_mode<boost::intrusive::normal_link>> {
public:
  explicit loan(connection_impl& owner) noexcept : owner_(owner) {}
  loan(const loan&) = delete;
  ~loan() { end(); }

  void begin(const registered_buffer& memory) noexcept;
  void end() noexcept;

  /// The connections that have lent bytes of `memory`, each once, in no order.
  static std::vector<std::shared_ptr<connection_impl>> owners(const registered_buffer& memory);

private:
  struct list;

  connection_impl& owner_;
  std::uintptr_t begin_ = 0, end_ = 0; // both 0 unless in the list
};

} // namespace asio_rdma::detail
