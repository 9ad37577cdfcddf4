// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "connection/message_outbox.hpp"

#include <array>
#include <cstddef>
#include <vector>

namespace protocol_test {

/// The payload of a `gathered` frame, whose messages have zeros for their bytes. Empty for another
/// frame.
inline std::vector<std::byte> gathered_payload(const asio_rdma::detail::outgoing_frame& frame) {
  using namespace asio_rdma::detail;
  std::vector<std::byte> result;
  if (frame.header.type != frame_type::gathered)
    return result;
  for (const auto* op = static_cast<const message_out*>(frame.operation); op != nullptr;
       op = op->together()) {
    std::array<std::byte, gathered_header::size> header;
    encode({static_cast<std::uint32_t>(op->bytes), op->immediate}, header.data());
    result.insert(result.end(), header.begin(), header.end());
    result.resize(result.size() + gathered_size(op->bytes) - header.size());
  }
  return result;
}

} // namespace protocol_test
