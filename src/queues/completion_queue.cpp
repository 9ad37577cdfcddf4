// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/detail/queues/completion_service.hpp>

namespace asio_rdma {

using detail::completion_service;

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   const completion_queue_options& options, error_code& ec)
    : impl_(completion_service::of(context).make_queue(d, options, ec)) {}

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   const completion_queue_options& options) {
  error_code ec;
  impl_ = completion_service::of(context).make_queue(d, options, ec);
  detail::throw_if(ec, "ibv_create_cq");
}

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   native_handle_type cq, ownership owns,
                                   const completion_queue_options& options, error_code& ec)
    : impl_(completion_service::of(context).adopt_queue(d, options, cq, owns, ec)) {}

completion_queue::completion_queue(asio::execution_context& context, const device& d,
                                   native_handle_type cq, ownership owns,
                                   const completion_queue_options& options) {
  error_code ec;
  impl_ = completion_service::of(context).adopt_queue(d, options, cq, owns, ec);
  detail::throw_if(ec, "completion_queue");
}

completion_queue::native_handle_type completion_queue::native_handle() const noexcept {
  return impl_ ? impl_->native_handle() : nullptr;
}

completion_mode completion_queue::mode() const noexcept { return impl_->options().mode; }

std::uint32_t completion_queue::entries() const noexcept { return impl_->options().entries; }

completion_counters completion_queue::counters() const noexcept { return impl_->counters(); }

std::size_t completion_queue::poll() { return impl_->poll(); }

void completion_queue::set_default_options(asio::execution_context& context,
                                           const completion_queue_options& options) {
  completion_service::of(context).set_default_options(options);
}

} // namespace asio_rdma
