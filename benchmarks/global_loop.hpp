// SPDX-License-Identifier: BSL-1.0
//
// The memory of another node by `global_memory`. `work::read` reads values of 8 bytes;
// `work::batch` writes eight words, one by one or as a batch. Both nodes are in this process.
#pragma once

#include "asio_loop.hpp"

#include <asio_rdma/global_memory.hpp>

#include <cstdint>

namespace bench {

/// Two nodes that have joined each other and themselves, each with a segment.
struct two_nodes {
  static constexpr std::uint64_t segment_bytes = 1 << 20;

  two_nodes(const plan& p, const cm_end& near)
      : device(near.context(), asio_rdma::ownership::borrow),
        pool(asio_rdma::protection_domain(device)) {
    for (asio_rdma::global_memory* m : {&a, &b}) {
      m->host(segment_bytes);
      m->listen({asio::ip::make_address(p.address), 0});
    }
    join(a, b);
    join(a, a);
    join(b, b);
  }

  void join(asio_rdma::global_memory& who, asio_rdma::global_memory& to) {
    bool joined = false;
    who.async_join(to.local_endpoint(), [&](const asio_rdma::error_code& ec, auto) {
      if (ec)
        fail("join", ec.message().c_str());
      joined = true;
    });
    while (!joined)
      io.run_one();
  }

  /// Memory in a node's own segment.
  template <class T>
  asio_rdma::remote_ptr<T> make(asio_rdma::global_memory& owner, std::uint64_t count) {
    asio_rdma::remote_ptr<T> result;
    owner.async_allocate<T>(owner.id(), 0, count,
                            [&](const asio_rdma::error_code& ec, asio_rdma::remote_ptr<T> made) {
                              if (ec)
                                fail("allocate", ec.message().c_str());
                              result = made;
                            });
    while (result == nullptr)
      io.run_one();
    return result;
  }

  asio::io_context io{1};
  asio_rdma::device device;
  asio_rdma::memory_pool pool;
  asio_rdma::global_memory a{io, pool, 1}, b{io, pool, 2};
};

class global_loop final : public loop {
public:
  global_loop(const plan& p, bool batches, const cm_end& near)
      : plan_(p), batches_(batches), nodes_(p, near) {
    for (std::uint64_t i = 0; i < words; ++i)
      batch_.write(at_ + i, i);
  }

  queue_counters counters() const override { return {}; }
  void serve() override {}

  void run(std::uint64_t operations) override {
    left_ = under_way_ = operations;
    nodes_.io.restart();
    if (plan_.what == work::batch)
      write();
    else
      for (std::uint32_t i = 0; i < plan_.window(); ++i)
        read();
    nodes_.io.run();
  }

private:
  static constexpr std::uint64_t words = 8;

  void ended(const asio_rdma::error_code& ec) {
    if (ec)
      fail("operation", ec.message().c_str());
    if (--under_way_ == 0)
      nodes_.io.stop();
  }

  void read() {
    if (left_ == 0)
      return;
    --left_;
    nodes_.a.async_read(at_, [this](const asio_rdma::error_code& ec, std::uint64_t) {
      ended(ec);
      read();
    });
  }

  void write() {
    if (left_ == 0)
      return;
    --left_;
    if (batches_)
      return batch_.async_post([this](const asio_rdma::error_code& ec) {
        ended(ec);
        write();
      });
    singles_ = words;
    for (std::uint64_t i = 0; i < words; ++i)
      nodes_.a.async_write(at_ + i, i, [this](const asio_rdma::error_code& ec) {
        if (ec || --singles_ == 0) {
          ended(ec);
          write();
        }
      });
  }

  plan plan_;
  bool batches_;
  two_nodes nodes_;
  const asio_rdma::remote_ptr<std::uint64_t> at_{nodes_.make<std::uint64_t>(nodes_.b, words)};
  asio_rdma::global_memory::batch batch_{nodes_.a, nodes_.b.id()};
  std::uint64_t left_ = 0, under_way_ = 0, singles_ = 0;
};

} // namespace bench
