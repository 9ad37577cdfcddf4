// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unistd.h>

/// "12.3 MB"
inline std::string in_bytes(double value) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; value >= 1000 && unit < 4; ++unit)
    value /= 1000;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

/// Counts bytes. On a terminal it shows a bar and the rate during its lifetime.
class progress {
  using clock = std::chrono::steady_clock;

public:
  explicit progress(std::uint64_t total) : total_(total) {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { erase(); }

  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (terminal_ && (clock::now() >= next_ || done_ == total_)) {
      next_ = clock::now() + std::chrono::milliseconds(100);
      draw();
    }
  }
  std::string rate() const { return in_bytes(double(done_) / std::max(seconds(), 1e-6)) + "/s"; }
  double seconds() const { return std::chrono::duration<double>(clock::now() - begin_).count(); }
  void erase() {
    if (!drawn_)
      return;
    drawn_ = false;
    std::fputs("\r\033[K", stdout);
    std::fflush(stdout); // the next output may go to another stream
  }

private:
  void draw() {
    constexpr std::uint64_t width = 40;
    const std::uint64_t full = done_ * width / total_;
    const std::string bar = std::string(full, '#') + std::string(width - full, '-');
    std::printf("\r[%s] %3d %%  %s  %s\033[K", bar.c_str(), static_cast<int>(done_ * 100 / total_),
                in_bytes(double(done_)).c_str(), rate().c_str());
    std::fflush(stdout);
    drawn_ = true;
  }

  std::uint64_t total_;
  std::uint64_t done_ = 0;
  bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  bool drawn_ = false;
  clock::time_point begin_ = clock::now();
  clock::time_point next_ = begin_;
};
