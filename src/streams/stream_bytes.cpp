// SPDX-License-Identifier: BSL-1.0
// The bytes of a stream: between the caller's buffers, blocks, frames, chunks and offers.
#include "streams/stream_bytes.hpp"

#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "memory/memory_pool_impl.hpp"

#include <algorithm>
#include <cassert>
#include <new>

namespace asio_rdma::detail {
namespace {

registered_buffer allocate(const memory_pool& pool, std::size_t bytes, error_code& ec) {
  try {
    return pool.allocate(bytes, ec);
  } catch (const std::bad_alloc&) {
    ec = asio::error::no_memory;
    return {};
  }
}

} // namespace

void stream_impl::add_payload(const outgoing_frame& frame, frame_transfer& to) {
  link_.count_sent(frame.header.length);
  auto& source = static_cast<stream_source&>(*frame.operation);
  if (source.is_block()) {
    const stream_block& b = static_cast<const stream_block&>(source);
    const const_buffer payload =
        (const_buffer(blocks_[b.index]) + b.frame_offset()).first(frame.header.length);
    if (payload.size() <= frame_transfer::payload_room)
      to.copy(payload.data(), payload.size());
    else
      to.add(element_of(payload));
    return;
  }
  auto& request = static_cast<stream_writing::request_type&>(static_cast<stream_write&>(source));
  if (request.what == stream_write::kind::copy) { // it is sent at once
    for (const ibv_sge& e : std::span(request.op->parts, request.op->part_count))
      to.copy(reinterpret_cast<const void*>(e.addr), e.length);
    return;
  }
  for_range({request.op->parts, request.op->part_count}, request.frame_offset(),
            frame.header.length, [&](const ibv_sge& e) { to.add(e); });
}

void stream_impl::fill(const stream_action& a) {
  link_.post_gathered();
  const auto& op = *static_cast<stream_writing::request_type&>(*a.write).op;
  registered_buffer& memory = blocks_[a.block->index];
  if (a.at == 0) {
    error_code ec;
    memory = allocate(link_.pool(), a.block->capacity, ec);
    if (ec)
      return bytes_->no_memory(*a.write, *a.block, ec);
  }
  gather({op.parts, op.part_count}, a.offset, a.bytes,
         static_cast<std::byte*>(memory.data()) + a.at);
}

void stream_impl::expose(stream_write& write) {
  stream_writing& op = *static_cast<stream_writing::request_type&>(write).op;
  const ibv_sge& of = op.parts[0];
  if (link_.open_offer(op, {reinterpret_cast<const void*>(of.addr),
                            static_cast<std::size_t>(write.bytes), of.lkey, op.device_only}))
    bytes_->not_exposed(write);
  else
    bytes_->exposed(write, link_impl::remote_of(op));
}

// Nothing ends a stream whose reader takes no bytes. So all streams together read ahead while less
// than half of the pool's limit is in use, as receives grow. Then each has few bytes at a time.
void stream_impl::pull(const stream_action& a) {
  const memory_pool& pool = link_.pool();
  const bool has_room = pool.impl()->leaves_half(a.memory.size);
  if (!has_room && bytes_->reads_ahead())
    return bytes_->hold_back();
  error_code ec;
  try {
    while (chunks_.size() <= a.chunk->index)
      chunks_.push_back(std::make_unique<chunk>(*this));
  } catch (const std::bad_alloc&) {
    return bytes_->no_memory(asio::error::no_memory);
  }
  chunk& c = *chunks_[a.chunk->index];
  c.of = a.chunk;
  if (has_room)
    c.memory = allocate(pool, a.memory.size, ec);
  if (!has_room || ec) { // then fewer bytes, if there is memory for those
    a.chunk->bytes = std::min(a.chunk->bytes, stream_options_.receive_size);
    c.memory = allocate(pool, a.chunk->bytes, ec);
  }
  if (!ec) {
    c.start(c.memory, a.memory.first(a.chunk->bytes));
    ec = c.failure();
  }
  if (!ec)
    return bytes_->pulling(*a.chunk);
  c.memory = {};
  bytes_->no_memory(ec);
}

void stream_impl::pull_direct(const stream_action& a) {
  const ibv_sge& to = *static_cast<stream_reading::request_type&>(*a.read).op->parts;
  direct_->to = a.read;
  direct_->size = a.memory.size;
  direct_->start({reinterpret_cast<void*>(to.addr), a.memory.size, to.lkey}, a.memory);
}

void stream_impl::take(const stream_action& a) {
  assert(a.read != nullptr && a.bytes != 0);
  link_.count_received(a.bytes);
  stream_reading& op = *static_cast<stream_reading::request_type&>(*a.read).op;
  const registered_buffer& memory =
      a.chunk != nullptr ? chunks_[a.chunk->index]->memory : link_.received(a.slot);
  const std::size_t at = a.chunk != nullptr ? a.at : frame_header::size + a.at;
  if (a.read->what == stream_read::kind::piece) {
    op.result =
        a.chunk != nullptr ? memory.slice(at, a.bytes) : link_.take_received(a.slot, at, a.bytes);
  } else {
    link_.post_gathered();
    scatter(static_cast<const std::byte*>(memory.data()) + at, {op.parts, op.part_count}, a.offset,
            a.bytes);
  }
  if (a.emptied && a.chunk == nullptr)
    link_.frames().release(a.slot);
}

} // namespace asio_rdma::detail
