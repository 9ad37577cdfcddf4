// SPDX-License-Identifier: BSL-1.0
// A line on a terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace perf {

/// The line that tells on the standard error how far a run has come. On a terminal it is replaced
/// by the next one.
class progress {
public:
  progress(std::size_t all, bool shown)
      : all_(all), shown_(shown), replaced_(::isatty(STDERR_FILENO) != 0) {}
  progress(const progress&) = delete;
  ~progress() { erase(); }

  /// `done`: measurements that are over.
  void show(std::size_t done, const std::string& what) {
    if (!shown_)
      return;
    using seconds = std::chrono::duration<double>;
    std::string left;
    if (done != 0) {
      const double each = seconds(std::chrono::steady_clock::now() - begin_).count() / double(done);
      left = ", about " + std::to_string(int(each * double(all_ - done)) + 1) + " s left";
    }
    erase();
    std::fprintf(stderr, "%zu of %zu: %s%s%s", done + 1, all_, what.c_str(), left.c_str(),
                 replaced_ ? "" : "\n");
    std::fflush(stderr);
  }
  void erase() {
    if (shown_ && replaced_)
      std::fprintf(stderr, "\r\033[K");
  }

private:
  std::size_t all_;
  bool shown_, replaced_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace perf
