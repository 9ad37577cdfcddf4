// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/shared_receives.hpp>

#include "link/shared_receives_impl.hpp"

namespace asio_rdma {

shared_receives::shared_receives(asio::execution_context& context, const memory_pool& pool,
                                 const completion_queue& queue,
                                 const shared_receives_options& options, error_code& ec)
    : impl_(detail::shared_receives_impl::make(context, pool, queue.impl(), options, ec)) {}

shared_receives::shared_receives(asio::execution_context& context, const memory_pool& pool,
                                 const completion_queue& queue,
                                 const shared_receives_options& options) {
  error_code ec;
  impl_ = detail::shared_receives_impl::make(context, pool, queue.impl(), options, ec);
  detail::throw_if(ec, "shared_receives");
}

bool shared_receives::is_open() const noexcept { return impl_ != nullptr && impl_->is_open(); }

const memory_pool& shared_receives::pool() const noexcept { return impl_->pool(); }

const shared_receives_options& shared_receives::options() const noexcept {
  return impl_->options();
}

shared_receives_statistics shared_receives::statistics() const { return impl_->statistics(); }

void shared_receives::close() {
  if (impl_)
    impl_->close();
}

} // namespace asio_rdma
