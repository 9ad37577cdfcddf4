// SPDX-License-Identifier: BSL-1.0
// The conditions under which the headers compile and a program links. Every header that depends on
// Boost includes this file before any other.
#pragma once

#if __cplusplus < 202002L
#error "asio_rdma needs C++20: compile with -std=c++20 or a newer standard"
#include <asio_rdma/needs_cpp20> // there is no such file: the compiler ends here
#endif

#include <boost/version.hpp>
#if BOOST_VERSION < 108100
#error "asio_rdma needs Boost 1.81 or a newer version"
#include <asio_rdma/needs_boost_1_81> // there is no such file: the compiler ends here
#endif

#include <boost/asio/buffer.hpp>
#include <boost/asio/detail/config.hpp>

// The library and the program share classes of Boost.Asio, whose members depend on the version of
// Boost and on macros. So each object file of a program refers to a variable that only a library
// with the same classes defines. Otherwise the linker reports an undefined reference, and its
// message has the name of the variable. These macros give its parts.

// A member of each scheduler operation: <boost/asio/detail/handler_tracking.hpp>.
#if defined(BOOST_ASIO_CUSTOM_HANDLER_TRACKING)
#define ASIO_RDMA_BUILD_TRACKING _CUSTOM_HANDLER_TRACKING
#elif defined(BOOST_ASIO_ENABLE_HANDLER_TRACKING)
#define ASIO_RDMA_BUILD_TRACKING _HANDLER_TRACKING
#else
#define ASIO_RDMA_BUILD_TRACKING
#endif
// Mutexes, events and counters of the scheduler: BOOST_ASIO_DISABLE_THREADS.
#if defined(BOOST_ASIO_HAS_THREADS)
#define ASIO_RDMA_BUILD_THREADS
#else
#define ASIO_RDMA_BUILD_THREADS _without_THREADS
#endif
// The scheduler's counter of work: <boost/asio/detail/atomic_count.hpp>.
#if defined(BOOST_ASIO_DISABLE_STD_ATOMIC)
#define ASIO_RDMA_BUILD_ATOMIC _without_STD_ATOMIC
#else
#define ASIO_RDMA_BUILD_ATOMIC
#endif
// The pointers to a thread's data: <boost/asio/detail/tss_ptr.hpp>.
#if defined(BOOST_ASIO_HAS_THREAD_KEYWORD_EXTENSION)
#define ASIO_RDMA_BUILD_KEYWORD
#else
#define ASIO_RDMA_BUILD_KEYWORD _without_THREAD_KEYWORD_EXTENSION
#endif
// A member of a thread's data: <boost/asio/detail/thread_info_base.hpp>.
#if defined(BOOST_ASIO_NO_EXCEPTIONS) || defined(BOOST_ASIO_DISABLE_STD_EXCEPTION_PTR)
#define ASIO_RDMA_BUILD_EXCEPTIONS _without_EXCEPTIONS
#else
#define ASIO_RDMA_BUILD_EXCEPTIONS
#endif
// The memory that a thread keeps and reuses: the same file.
#if defined(BOOST_ASIO_DISABLE_SMALL_BLOCK_RECYCLING)
#define ASIO_RDMA_BUILD_RECYCLING _without_SMALL_BLOCK_RECYCLING
#elif defined(BOOST_ASIO_RECYCLING_ALLOCATOR_CACHE_SIZE) &&                                        \
    BOOST_ASIO_RECYCLING_ALLOCATOR_CACHE_SIZE != 2 // the default
#define ASIO_RDMA_BUILD_RECYCLING                                                                  \
  ASIO_RDMA_PASTE(_RECYCLING_ALLOCATOR_CACHE_SIZE_, BOOST_ASIO_RECYCLING_ALLOCATOR_CACHE_SIZE)
#else
#define ASIO_RDMA_BUILD_RECYCLING
#endif
// The sizes of that memory: the same file.
#if defined(BOOST_ASIO_HAS_IO_URING)
#define ASIO_RDMA_BUILD_CHUNKS _IO_URING
#else
#define ASIO_RDMA_BUILD_CHUNKS
#endif
// How that memory is allocated: <boost/asio/detail/memory.hpp>.
#if defined(BOOST_ASIO_HAS_STD_ALIGNED_ALLOC)
#define ASIO_RDMA_BUILD_ALIGNED
#else
#define ASIO_RDMA_BUILD_ALIGNED _without_STD_ALIGNED_ALLOC
#endif
// Functions of `any_io_executor`, and the key of a service.
#if defined(BOOST_ASIO_NO_TYPEID)
#define ASIO_RDMA_BUILD_TYPEID _without_TYPEID
#else
#define ASIO_RDMA_BUILD_TYPEID
#endif
// The type that `any_io_executor` names.
#if defined(BOOST_ASIO_USE_TS_EXECUTOR_AS_DEFAULT)
#define ASIO_RDMA_BUILD_EXECUTOR _TS_EXECUTOR
#else
#define ASIO_RDMA_BUILD_EXECUTOR
#endif
// A member of each buffer: <boost/asio/buffer.hpp>. The macro of debug mode of libstdc++ adds it.
#if defined(BOOST_ASIO_ENABLE_BUFFER_DEBUGGING)
#define ASIO_RDMA_BUILD_BUFFERS _BUFFER_DEBUGGING
#else
#define ASIO_RDMA_BUILD_BUFFERS
#endif
// Mutexes of the reactor and of strands since Boost 1.92: <boost/asio/detail/slim_mutex.hpp>.
#if defined(BOOST_ASIO_DISABLE_FUTEX) && defined(BOOST_ASIO_DISABLE_STD_ATOMIC_WAIT)
#define ASIO_RDMA_BUILD_MUTEX _without_FUTEX_and_STD_ATOMIC_WAIT
#elif defined(BOOST_ASIO_DISABLE_FUTEX)
#define ASIO_RDMA_BUILD_MUTEX _without_FUTEX
#else
#define ASIO_RDMA_BUILD_MUTEX
#endif
// The reactor, its descriptors of timers and its interrupter.
#if defined(BOOST_ASIO_HAS_IO_URING_AS_DEFAULT)
#define ASIO_RDMA_BUILD_REACTOR _AS_DEFAULT
#elif !defined(BOOST_ASIO_HAS_EPOLL)
#define ASIO_RDMA_BUILD_REACTOR _without_EPOLL
#elif !defined(BOOST_ASIO_HAS_EVENTFD)
#define ASIO_RDMA_BUILD_REACTOR _without_EVENTFD
#elif !defined(BOOST_ASIO_HAS_TIMERFD)
#define ASIO_RDMA_BUILD_REACTOR _without_TIMERFD
#else
#define ASIO_RDMA_BUILD_REACTOR
#endif

#define ASIO_RDMA_PASTE_EXPANDED(a, b) a##b
#define ASIO_RDMA_PASTE(a, b) ASIO_RDMA_PASTE_EXPANDED(a, b)
#define ASIO_RDMA_BUILD_NAME_OF(boost, a, b, c, d, e, f, g, h, i, j, k, l, m)                      \
  library_built_with_BOOST_VERSION_##boost##a##b##c##d##e##f##g##h##i##j##k##l##m
#define ASIO_RDMA_BUILD_NAME_EXPANDED(...) ASIO_RDMA_BUILD_NAME_OF(__VA_ARGS__)
/// The name of the variable, such as `library_built_with_BOOST_VERSION_108100`.
#define ASIO_RDMA_BUILD_NAME                                                                       \
  ASIO_RDMA_BUILD_NAME_EXPANDED(                                                                   \
      BOOST_VERSION, ASIO_RDMA_BUILD_TRACKING, ASIO_RDMA_BUILD_THREADS, ASIO_RDMA_BUILD_ATOMIC,    \
      ASIO_RDMA_BUILD_KEYWORD, ASIO_RDMA_BUILD_EXCEPTIONS, ASIO_RDMA_BUILD_RECYCLING,              \
      ASIO_RDMA_BUILD_ALIGNED, ASIO_RDMA_BUILD_TYPEID, ASIO_RDMA_BUILD_EXECUTOR,                   \
      ASIO_RDMA_BUILD_BUFFERS, ASIO_RDMA_BUILD_CHUNKS, ASIO_RDMA_BUILD_MUTEX,                      \
      ASIO_RDMA_BUILD_REACTOR)

#pragma GCC visibility push(default)
namespace asio_rdma::detail {

extern const char ASIO_RDMA_BUILD_NAME;

/// The reference to it: a pointer that the linker keeps, also with --gc-sections, and of which a
/// program has one. Nothing reads the pointer.
[[gnu::used, gnu::retain]] inline const char* const
    ASIO_RDMA_PASTE(needs_, ASIO_RDMA_BUILD_NAME) = &ASIO_RDMA_BUILD_NAME;

} // namespace asio_rdma::detail
#pragma GCC visibility pop
