// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/detail/core/build.hpp>
#include <boost/asio/async_result.hpp>

#include <utility>

namespace asio_rdma::detail {

/// Whether `Token` is a completion token for operations of the signature. False also for a handler
/// that cannot be called with the signature's arguments.
template <class Token, class Signature>
inline constexpr bool suits =
#if defined(BOOST_ASIO_HAS_CONCEPTS)
    boost::asio::completion_token_for<Token, Signature>;
#else
    true;
#endif

/// `asio::async_initiate`. With an argument that is no completion token, the compiler reports one
/// error, in words.
template <class Token, class Signature, class Initiation, class... Args>
[[gnu::always_inline]] inline auto begin_async(Initiation&& initiation, Token& token,
                                               Args&&... args) {
  constexpr bool token_suits_signature = suits<Token, Signature>;
  static_assert(token_suits_signature,
                "the last argument is no completion token for this operation: a handler must be "
                "callable with the arguments of the completion signature (Signature)");
  if constexpr (token_suits_signature)
    return boost::asio::async_initiate<Token, Signature>(std::forward<Initiation>(initiation),
                                                         token, std::forward<Args>(args)...);
}

} // namespace asio_rdma::detail
