// SPDX-License-Identifier: BSL-1.0
// Requests are given to operations, after they were put to the program (`accept_options::admit`).
#include "connecting/acceptor_impl.hpp"

#include <boost/asio/post.hpp>

#include <cassert>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <utility>

namespace asio_rdma::detail {

// Gives requests to operations, as far as handshakes may begin. A refused request leaves its
// operation waiting, so the requests of one turn are limited, of all requests that arrive in it
// together; then the next turn goes on. `fresh` has just arrived, so it was not withdrawn. Each
// answered request leaves an id that is to be destroyed one day.
void acceptor_impl::match(leftovers& left, const cm_connection* fresh) noexcept {
  assert(mutex_.held());
  if (fresh == nullptr) {
    if (goes_on_)
      return;
    in_turn_ = 0;
  }
  const ending_ids::crowded_sources crowded = service_.ending()->crowded();
  const bool of_crowded = fresh != nullptr && crowded.have(fresh->connector().address());
  // A request that cannot be answered makes no other one answerable.
  while (!of_crowded && !requests_.empty() && !waiting_.empty() && asked_request_.empty() &&
         tallies_->under_way.count() < most_handshakes_ && !service_.ending()->pile_up()) {
    const auto next = next_request(crowded);
    if (next == requests_.end())
      break;
    if (in_turn_ == most_a_turn) {
      if (!std::exchange(goes_on_, true))
        left.goes_on = std::static_pointer_cast<acceptor_impl>(shared_from_this());
      return;
    }
    ++in_turn_;
    request_list one;
    one.splice(one.end(), requests_, next);
    const std::shared_ptr<cm_connection>& connection = one.front();
    if (connection.get() != fresh && connection->withdrawn()) {
      connection->count_end(&acceptor_tallies::aborted);
      left.ended.splice(left.ended.end(), one);
      continue;
    }
    operation_list taker;
    taker.splice(taker.end(), waiting_, waiting_.begin());
    if (must_ask(static_cast<const accept_operation&>(taker.front()), *connection))
      begin_question(taker, one, left);
    else
      serve(taker, one, left);
  }
  if (!goes_on_)
    make_way(left, crowded);
}

// The next request to be answered: one of the source with the fewest handshakes under way, so that
// a source with many requests delays the others by few. Of its requests, the oldest; but of
// requests that have waited while connectors fell silent, the older ones are likely to be silent,
// too. The end if all are of crowded sources.
acceptor_impl::request_list::iterator
acceptor_impl::next_request(const ending_ids::crowded_sources& crowded) noexcept {
  assert(mutex_.held() && !requests_.empty());
  if (requests_.size() == 1 && crowded.empty()) [[likely]]
    return requests_.begin();
  const pending_handshakes::sources under_way = tallies_->under_way.by_source();
  const auto first_of_fewest = [&](auto i, auto end) {
    auto found = end;
    std::size_t fewest = std::numeric_limits<std::size_t>::max();
    for (; i != end && fewest != 0; ++i) {
      const asio::ip::address source = (*i)->connector().address();
      if (crowded.have(source))
        continue;
      if (const std::size_t n = under_way.count(source); n < fewest) {
        found = i;
        fewest = n;
      }
    }
    return found;
  };
  const bool newest_first = newest_first_until_ != pending_handshakes::clock::time_point() &&
                            pending_handshakes::clock::now() < newest_first_until_;
  if (!newest_first)
    return first_of_fewest(requests_.begin(), requests_.end());
  const auto found = first_of_fewest(requests_.rbegin(), requests_.rend());
  return found == requests_.rend() ? requests_.end() : std::prev(found.base());
}

// The request that is rejected as the backlog is full: the newest one of the source that has the
// most. The end if that is the newcomer's source, or if there is no memory.
acceptor_impl::request_list::iterator
acceptor_impl::request_to_reject(const cm_connection& newcomer) noexcept {
  assert(mutex_.held());
  try {
    std::vector<asio::ip::address> connectors;
    connectors.reserve(requests_.size());
    for (const auto& r : requests_)
      connectors.push_back(r->connector().address());
    const auto busiest =
        pending_handshakes::busiest_source(std::move(connectors), newcomer.connector().address());
    if (busiest)
      for (auto i = requests_.end(); i != requests_.begin();)
        if (pending_handshakes::source_of((*--i)->connector().address()) == *busiest)
          return i;
  } catch (const std::bad_alloc&) {
  }
  return requests_.end();
}

// No mutex is locked. If there is no memory, the requests are served at once.
void acceptor_impl::put_off(completion_service& operations, leftovers& left) noexcept {
  while (const auto self = std::exchange(left.goes_on, nullptr)) {
    try {
      asio::post(self->executor_, [weak = self->weak_from_this()] {
        if (const auto alive = std::static_pointer_cast<acceptor_impl>(weak.lock()))
          alive->go_on();
      });
    } catch (...) { // also an exception of the program's executor
      {
        const std::lock_guard lock(self->mutex_);
        self->goes_on_ = false;
        self->match(left);
      }
      settle_all(operations, left);
    }
  }
}

void acceptor_impl::go_on() noexcept {
  leftovers left;
  {
    const std::lock_guard lock(mutex_);
    goes_on_ = false;
    if (id_ == nullptr)
      return;
    match(left);
  }
  settle(service_.operations(), left);
}

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
      one.front()->count_end(&acceptor_tallies::failed, op.ec);
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
