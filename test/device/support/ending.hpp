// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "device/asio/asio_support.hpp"

namespace test {

/// The result that an operation's handler received; its memory is counted.
struct ending {
  int calls = 0;
  error_code ec;
  bool done() const { return calls != 0; }
  bool succeeded() const { return calls == 1 && !ec; }
};

struct ending_handler {
  using allocator_type = counting_allocator<char>;

  ending* where;
  allocation_count* count;

  allocator_type get_allocator() const noexcept { return allocator_type(*count); }
  void operator()(error_code ec) const {
    ++where->calls;
    where->ec = ec;
  }
  template <class T>
  void operator()(error_code ec, const T&) const {
    (*this)(ec);
  }
};

} // namespace test
