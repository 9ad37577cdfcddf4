// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_ENGINE_SANITIZERS_HPP
#define SOFT_ENGINE_SANITIZERS_HPP

// SOFT_ADDRESS_SANITIZER and SOFT_THREAD_SANITIZER: 1 if this is compiled with that sanitizer.
#if defined(__has_feature) // clang
#define SOFT_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#define SOFT_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#if defined(__SANITIZE_ADDRESS__)
#define SOFT_ADDRESS_SANITIZER 1
#else
#define SOFT_ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__)
#define SOFT_THREAD_SANITIZER 1
#else
#define SOFT_THREAD_SANITIZER 0
#endif
#endif

#endif
