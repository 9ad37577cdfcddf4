// SPDX-License-Identifier: BSL-1.0
#include <interposer/watched_locks.hpp>

#include <pthread.h>

// The linker replaces pthread_mutex_lock by this function in all objects of the program (--wrap).
extern "C" int __real_pthread_mutex_lock(pthread_mutex_t*);
extern "C" int __wrap_pthread_mutex_lock(pthread_mutex_t*);
int __wrap_pthread_mutex_lock(pthread_mutex_t* m) {
  test::watched_locks::tell();
  return __real_pthread_mutex_lock(m);
}
