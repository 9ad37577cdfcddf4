// SPDX-License-Identifier: BSL-1.0
#include "device/link/stream_fault_scene.hpp"

#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>

#include <vector>

namespace test {
namespace {

using faults::call;

// A stream that is closed while the device keeps completions back gives up soon. If the peer takes
// no more bytes and nothing is posted, only the keep-alive finds that the device refuses the next
// post.
stream_options brief() {
  stream_options o;
  o.keep_alive = std::chrono::milliseconds(200);
  o.linger = std::chrono::milliseconds(100);
  // Receives take whole writes without a reader, so a write without room gets some when the SENDs
  // complete.
  o.receive_size = o.max_receive_size;
  return o;
}

} // namespace

std::span<const stream_scene::kind_type> stream_scene::kinds() {
  static const std::array all = {
      kind_type{.name = "read",
                .start = [](stream_scene& s, unsigned i,
                            ending_handler h) { s.a().async_read_some(few(s, i), h); },
                .feed = [](stream_scene& s,
                           unsigned i) { s.b().async_write_some(few(s, i), asio::detached); },
                .post = call::post_recv},
      kind_type{
          .name = "receive",
          .start = [](stream_scene& s, unsigned, ending_handler h) { s.a().async_receive(h); },
          .feed = [](stream_scene& s,
                     unsigned i) { s.b().async_write_some(few(s, i), asio::detached); },
          .post = call::post_recv},
      kind_type{.name = "wait to read",
                .start = [](stream_scene& s, unsigned,
                            ending_handler h) { s.a().async_wait(stream::wait_read, h); },
                .feed = [](stream_scene& s,
                           unsigned i) { s.b().async_write_some(few(s, i), asio::detached); },
                .post = call::poll_cq, // it posts nothing
                .ends = end::none},
      kind_type{"write without room",
                [](stream_scene& s, unsigned i, ending_handler h) {
                  s.fill();
                  s.a().async_write_some(many(s, i), h);
                }},
      kind_type{"write of registered memory",
                [](stream_scene& s, unsigned i, ending_handler h) {
                  s.a().async_write_some(s.big[i], h);
                }},
      kind_type{"write that the peer reads",
                [](stream_scene& s, unsigned i, ending_handler h) {
                  s.a().async_write_some(s.long_out[i], h);
                }},
      kind_type{.name = "read by a READ",
                .start = [](stream_scene& s, unsigned i,
                            ending_handler h) { s.a().async_read_some(s.long_in[i], h); },
                .feed =
                    [](stream_scene& s, unsigned i) {
                      s.b().async_write_some(s.long_out[i], asio::detached);
                    }},
      kind_type{.name = "wait to write",
                .start =
                    [](stream_scene& s, unsigned, ending_handler h) {
                      s.fill();
                      s.a().async_wait(stream::wait_write, h);
                    },
                .ends = end::none},
      kind_type{.name = "wait for the end",
                .start = [](stream_scene& s, unsigned,
                            ending_handler h) { s.a().async_wait(stream::wait_error, h); },
                .post = call::poll_cq,
                .ends = end::only},
      kind_type{.name = "shutdown, and a read behind it",
                .start =
                    [](stream_scene& s, unsigned i, ending_handler h) {
                      error_code ec;
                      s.a().shutdown(stream::shutdown_send, ec);
                      s.a().async_read_some(few(s, i), h);
                    },
                .feed = [](stream_scene& s,
                           unsigned i) { s.b().async_write_some(few(s, i), asio::detached); },
                .is_last = true},
  };
  return all;
}

stream_scene::stream_scene(const kind_type& k) : link_scene(k, brief()) {
  for (unsigned i = 0; i < most; ++i) {
    long_out[i] = pool().allocate(2 * large);
    long_in[i] = pool().allocate(2 * large);
  }
  a().async_wait(stream::wait_error, disconnected());
  // On iWARP b sends nothing before it has received, and two writes would share one frame. A lent
  // write ends with its SEND, so the sides then have nothing in flight. Because b has answered, a
  // lends again.
  exchange(a(), b(), big[0]);
  exchange(b(), a(), big[1]);
}

void stream_scene::exchange(stream& from, stream& to, const registered_buffer& bytes) {
  sent write, read;
  std::vector<char> there(bytes.size());
  asio::async_read(to, asio::buffer(there), read.handler());
  from.async_write_some(bytes, write.handler());
  until([&] { return write.done() && read.done(); });
  REQUIRE(write.succeeded());
  REQUIRE(read.succeeded());
}

void stream_scene::fill() {
  error_code ec;
  a().non_blocking(true);
  while (!ec)
    a().write_some(many(*this, 0), ec);
  a().non_blocking(false);
}

bool stream_scene::works() {
  sent write[2], read[2];
  char there = 'x', here = 'y', out[2] = {'a', 'b'};
  b().async_read_some(asio::buffer(&there, 1), read[0].handler());
  a().async_read_some(asio::buffer(&here, 1), read[1].handler());
  a().async_write_some(asio::buffer(&out[0], 1), write[0].handler());
  b().async_write_some(asio::buffer(&out[1], 1), write[1].handler());
  until([&] { return write[0].done() && write[1].done() && read[0].done() && read[1].done(); });
  return write[0].succeeded() && write[1].succeeded() && read[0].succeeded() && read[1].succeeded();
}

} // namespace test
