// SPDX-License-Identifier: BSL-1.0
// A machine that is a folder with the files of a healthy one. Tests break it.
#pragma once

#include "judge.hpp"
#include "read_facts.hpp"

#include <filesystem>
#include <string>

namespace test {

class fake_machine {
public:
  /// A machine with rxe0 on eth0 (10.9.0.1, MTU 4200), and the user ann without rights.
  fake_machine();
  fake_machine(const fake_machine&) = delete;
  ~fake_machine();

  fake_machine& put(const std::string& path, const std::string& text);
  fake_machine& remove(const std::string& path);
  fake_machine& link(const std::string& path, const std::string& target);
  fake_machine& allow(const std::string& path, unsigned mode);

  /// An adapter in place of rxe0: mlx5_0 on eth0.
  fake_machine& has_adapter();
  /// A port in place of that of rxe0 or mlx5_0, of InfiniBand, with the interface ib0.
  fake_machine& is_infiniband();

  info::facts read() const;
  /// With `tried` and `asked`.
  info::findings judge() const;
  std::string text() const;

  info::interface_addresses addresses;
  std::string tried; ///< The lines of asio_rdma-info-try; empty: it was not run.
  std::string failure;
  info::question asked;
  std::string device = "rxe0";

private:
  std::filesystem::path root_;
};

/// The error of a name; fails the test if there is none, or another error beside it.
const info::finding& only_error(const info::findings& all, const std::string& name);
/// The finding of a name; fails the test if there is none.
const info::finding& find(const info::findings& all, const std::string& name);
bool has(const info::findings& all, const std::string& name);

} // namespace test
