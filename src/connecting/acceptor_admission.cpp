// SPDX-License-Identifier: BSL-1.0
// A request is given to an operation, after it was put to the program (`accept_options::admit`).
#include "connecting/acceptor_impl.hpp"

#include <boost/asio/post.hpp>

#include <cassert>
#include <new>
#include <optional>
#include <utility>

namespace asio_rdma::detail {

// An operation that goes on may end at any time, and is not used any more.
void acceptor_impl::serve(operation_list& one_operation, request_list& one,
                          leftovers& left) noexcept {
  auto& op = static_cast<accept_operation&>(one_operation.front());
  one_operation.pop_front();
  const served how = serve(op, one.front());
  if (how != served::going_on)
    one_operation.push_back(op);
  put_back(how, one_operation, one, left);
}

void acceptor_impl::put_back(served how, operation_list& one_operation, request_list& one,
                             leftovers& left) noexcept {
  if (how == served::refused)
    waiting_.splice(waiting_.begin(), one_operation);
  else
    left.done.splice(left.done.end(), one_operation);
  if (how == served::unfit)
    requests_.splice(requests_.begin(), one);
  else if (how == served::refused || how == served::failed)
    left.ended.splice(left.ended.end(), one);
}

// A request without the handshake of the operation's object is refused for that.
bool acceptor_impl::must_ask(const accept_operation& op, const cm_connection& connection) noexcept {
  return op.options.admit && op.qp != nullptr && (!op.target || connection.has_hello());
}

void acceptor_impl::begin_question(operation_list& one_operation, request_list& one,
                                   leftovers& left) noexcept {
  assert(mutex_.held() && asked_request_.empty());
  asked_operation_.splice(asked_operation_.end(), one_operation);
  asked_request_.splice(asked_request_.end(), one);
  left.asks = std::static_pointer_cast<acceptor_impl>(shared_from_this());
  left.question = ++questions_;
}

// The operation ends, or the acceptor. Another operation may take the request.
void acceptor_impl::take_back_question() noexcept {
  assert(mutex_.held());
  if (asked_request_.empty())
    return;
  ++questions_;
  waiting_.splice(waiting_.begin(), asked_operation_);
  requests_.splice(requests_.begin(), asked_request_);
}

// No mutex is locked. If there is no memory, the operation ends, and the next one is served.
void acceptor_impl::put_question(completion_service& operations, leftovers& left) noexcept {
  while (const auto self = std::exchange(left.asks, nullptr)) {
    try {
      asio::post(self->executor_, [weak = self->weak_from_this(), number = left.question] {
        if (const auto alive = std::static_pointer_cast<acceptor_impl>(weak.lock()))
          alive->ask(number);
      });
    } catch (...) { // also an exception of the program's executor
      admit_function none;
      self->end_question(left.question, std::nullopt, none, left);
      settle_all(operations, left);
    }
  }
}

void acceptor_impl::ask(std::uint64_t number) noexcept {
  admit_function admit;
  std::shared_ptr<cm_connection> request;
  {
    const std::lock_guard lock(mutex_);
    if (number != questions_)
      return;
    auto& op = static_cast<accept_operation&>(asked_operation_.front());
    admit = std::move(op.options.admit);
    request = asked_request_.front();
  }
  std::optional<bool> admitted;
  try {
    admitted = request->is_admitted(admit);
  } catch (const std::bad_alloc&) {
  }
  leftovers left;
  end_question(number, admitted, admit, left);
  settle(service_.operations(), left);
}

// `admitted`: nothing if there was no memory for the question. If the question was taken back
// meanwhile, a request that was refused has ended, and an admitted one is asked about again.
void acceptor_impl::end_question(std::uint64_t number, std::optional<bool> admitted,
                                 admit_function& asked, leftovers& left) noexcept {
  const std::lock_guard lock(mutex_);
  if (number == questions_) {
    ++questions_;
    operation_list taker;
    request_list one;
    taker.splice(taker.end(), asked_operation_);
    one.splice(one.end(), asked_request_);
    auto& op = static_cast<accept_operation&>(taker.front());
    if (asked)
      op.options.admit.swap(asked);
    if (!admitted) {
      op.ec = asio::error::no_memory;
      op.taken = true;
      one.front()->count_end(&acceptor_tallies::failed);
      put_back(served::failed, taker, one, left);
    } else if (*admitted) {
      serve(taker, one, left);
    } else {
      put_back(served::refused, taker, one, left);
    }
  }
  match(left);
}

} // namespace asio_rdma::detail
