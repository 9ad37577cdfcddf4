// SPDX-License-Identifier: BSL-1.0
#include "device/link/connection_fault_scene.hpp"

#include <boost/asio/detached.hpp>

namespace test {
namespace {

using faults::call;

bool with_atomics(const device& d) { return d.has_atomics(); }

access rights(const device& d) {
  const access usual = access::remote_read | access::remote_write;
  return d.has_atomics() ? usual | access::remote_atomic : usual;
}

connection_options generous() {
  connection_options o;
  o.gather = false; // each message has a completion that can be held back
  o.remote_memory.bytes = 1 << 20;
  o.remote_memory.rights = access::remote_read | access::remote_write | access::remote_atomic;
  return o;
}

remote_region ask(talk& t, asio_rdma::connection& c) {
  outcome<remote_region> r;
  c.async_request_memory(4096, rights(t.dev), r.handler());
  t.until([&] { return r.done(); });
  REQUIRE(r.ec == error_code());
  return r.value;
}

} // namespace

std::span<const connection_scene::kind_type> connection_scene::kinds() {
  static const std::array all = {
    kind_type{
        "send of a short message",
        [](connection_scene& s, unsigned i, ending_handler h) { s.a().async_send(few(s, i), h); }},
    kind_type{
        "send of registered memory",
        [](connection_scene& s, unsigned i, ending_handler h) { s.a().async_send(s.mine[i], 7, h); }},
    kind_type{
        "send of a view",
        [](connection_scene& s, unsigned i, ending_handler h) { s.a().async_send(const_buffer(s.mine[i]), h); }},
    kind_type{
        "send of several parts",
        [](connection_scene& s, unsigned i, ending_handler h) {
          const mutable_buffer whole = s.mine[i];
          s.a().async_send(std::array{whole.first(1000), whole + 1000}, h);
        }},
    kind_type{
        .name = "send of a long message",
        .start = [](connection_scene& s, unsigned i,
                    ending_handler h) { s.a().async_send(many(s, i), h); },
        .feed = [](connection_scene& s, unsigned) { s.b().async_receive(asio::detached); },
        .registers = true},
    kind_type{
        .name = "send of long registered memory",
        .start = [](connection_scene& s, unsigned i,
                    ending_handler h) { s.a().async_send(s.big[i], h); },
        .feed = [](connection_scene& s, unsigned) { s.b().async_receive(asio::detached); },
        .registers = true,
        .exposes = true},
    kind_type{
        .name = "send of a long view",
        .start = [](connection_scene& s, unsigned i,
                    ending_handler h) { s.a().async_send(const_buffer(s.big[i]), h); },
        .feed = [](connection_scene& s, unsigned) { s.b().async_receive(asio::detached); },
        .registers = true,
        .exposes = true},
    kind_type{
        .name = "receive of a short message",
        .start = [](connection_scene& s, unsigned, ending_handler h) { s.a().async_receive(h); },
        .feed = [](connection_scene& s, unsigned i) { s.b().async_send(few(s, i), asio::detached); },
        .post = call::post_recv},
    kind_type{
        .name = "receive into memory that is not registered",
        .start = [](connection_scene& s, unsigned i,
                    ending_handler h) { s.a().async_receive(many(s, i), h); },
        .feed = [](connection_scene& s, unsigned i) { s.b().async_send(few(s, i), asio::detached); },
        .post = call::post_recv},
    kind_type{
        .name = "receive of a long message",
        .start = [](connection_scene& s, unsigned, ending_handler h) { s.a().async_receive(h); },
        .feed = [](connection_scene& s, unsigned i) { s.b().async_send(many(s, i), asio::detached); }},
    kind_type{
        .name = "receive of a long message into registered memory",
        .start = [](connection_scene& s, unsigned i, ending_handler h) { s.a().async_receive(s.big[i], h); },
        .feed = [](connection_scene& s, unsigned i) { s.b().async_send(many(s, i), asio::detached); }},
    kind_type{
        .name = "receive of a long message into a view",
        .start = [](connection_scene& s, unsigned i, ending_handler h) { s.a().async_receive(mutable_buffer(s.big[i]), h); },
        .feed = [](connection_scene& s, unsigned i) { s.b().async_send(many(s, i), asio::detached); }},
    kind_type{
        .name = "receive of a short message into registered memory",
        .start = [](connection_scene& s, unsigned i, ending_handler h) { s.a().async_receive(s.big[i], h); },
        .feed = [](connection_scene& s, unsigned i) { s.b().async_send(few(s, i), asio::detached); },
        .post = call::post_recv},
    kind_type{
        .name = "receive of immediate data",
        .start = [](connection_scene& s, unsigned, ending_handler h) { s.a().async_receive_immediate(h); },
        .feed = [](connection_scene& s,
                   unsigned i) { s.b().async_write(few(s, i), s.of_a_, i, asio::detached); },
        .post = call::post_recv},
    kind_type{"write",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_write(few(s, i), s.there_[i], h);
                    }},
    kind_type{"write of registered memory",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_write(s.mine[i], s.there_[i], h);
                    }},
    kind_type{"write with immediate data",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_write(few(s, i), s.there_[i], i, h);
                    }},
    kind_type{"write of several parts",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      const mutable_buffer whole = s.mine[i];
                      s.a().async_write(std::array{whole.first(1000), whole + 1000}, s.there_[i], h);
                    }},
    kind_type{"read",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_read(few(s, i), s.there_[i], h);
                    }},
    kind_type{"read to registered memory",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_read(s.mine[i], s.there_[i], h);
                    }},
    kind_type{.name = "compare and swap",
                    .start =
                        [](connection_scene& s, unsigned i, ending_handler h) {
                          s.a().async_compare_and_swap(s.there_[i], 0, 1, h);
                        },
                    .offered = with_atomics},
    kind_type{.name = "fetch and add",
                    .start =
                        [](connection_scene& s, unsigned i, ending_handler h) {
                          s.a().async_fetch_add(s.there_[i], 1, h);
                        },
                    .offered = with_atomics},
    kind_type{
        "request of memory",
        [](connection_scene& s, unsigned, ending_handler h) { s.a().async_request_memory(100, h); }},
    kind_type{"release of memory, and a request behind it",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.there_[i].reset();
                      s.a().async_request_memory(100, h);
                    }},
    kind_type{"renewal",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_renew(s.there_[i], std::chrono::minutes(1), h);
                    }},
    kind_type{.name = "lending",
                    .start = [](connection_scene& s, unsigned i,
                                ending_handler h) { s.a().async_send_region(s.mine[i], h); },
                    .registers = true},
    kind_type{"handing back",
                    [](connection_scene& s, unsigned i, ending_handler h) {
                      s.a().async_send_region(s.there_[i], h);
                    }},
    kind_type{
        .name = "receive of a region",
        .start = [](connection_scene& s, unsigned, ending_handler h) { s.a().async_receive_region(h); },
        .feed = [](connection_scene& s, unsigned) { s.b().async_send_region(s.pool().allocate(64), asio::detached); },
        .post = call::post_recv},
    kind_type{
        .name = "close",
        .start = [](connection_scene& s, unsigned, ending_handler h) { s.a().async_close(h); },
        .is_last = true,
        .closes = true},
};
  return all;
}

connection_scene::connection_scene(const kind_type& k) : link_scene(k, generous()) {
  for (remote_region& r : there_)
    r = ask(pair(), a());
  of_a_ = ask(pair(), b());
  a().async_wait_disconnect(disconnected());
  // A send of registered memory ends with its SEND, and so do all SENDs before it: a fault that is
  // set now meets a completion of the operation.
  outcome<message> received;
  sent last;
  b().async_receive(received.handler());
  a().async_send(mine[0], last.handler());
  until([&] { return received.done() && last.done(); });
  REQUIRE(received.succeeded());
  REQUIRE(last.succeeded());
}

bool connection_scene::works() {
  outcome<message> r;
  sent w;
  b().async_receive(r.handler());
  a().async_send(asio::buffer("x", 1), w.handler());
  until([&] { return r.done() && w.done(); });
  return r.succeeded() && w.succeeded();
}

void connection_scene::drop() {
  there_ = {};
  of_a_ = {};
}

} // namespace test
