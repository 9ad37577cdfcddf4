// SPDX-License-Identifier: BSL-1.0
// The first use of the device in a process that lacks descriptors or threads.
#include "engine/sanitizers.hpp"
#include "support/fixture.hpp"
#include "support/processes.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

using namespace soft::test;

namespace {

void check_device() {
  connected_pair p;
  REQUIRE(p.b.receive(1) == 0);
  REQUIRE(p.a.send(2) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.b.completion().status == IBV_WC_SUCCESS);
}

// Runs a hidden test case in a process of its own, as this one has used the device.
void run(const char* name) {
  child other(name, {});
  std::string said;
  CHECK(other.wait(&said) == 0);
  CHECK(said == "");
}

} // namespace

// UndefinedBehaviorSanitizer, which comes with AddressSanitizer here, needs descriptors for its
// checks of types.
#if !SOFT_ADDRESS_SANITIZER

// One more descriptor is free at each try, so each of the first ones is the one that lacks once.
TEST_CASE("child: the first use finds too few descriptors", "[.child]") {
  const std::size_t before = open_descriptors();
  rlimit all{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &all) == 0);
  ibv_device** const list = ibv_get_device_list(nullptr);
  REQUIRE(list != nullptr);
  const int free = dup(0);
  REQUIRE(free >= 0);
  close(free);
  rlimit few = all;
  few.rlim_cur = static_cast<rlim_t>(free);
  int refused = 0;
  for (;; ++refused, ++few.rlim_cur) {
    const int limited = setrlimit(RLIMIT_NOFILE, &few);
    errno = 0;
    const owned_context context(ibv_open_device(list[0])); // soft0
    const int error = errno;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &all) == 0);
    REQUIRE(limited == 0);
    if (context)
      break;
    REQUIRE(error == EMFILE);
    if (refused < 3) // the engine's descriptors
      REQUIRE(open_descriptors() == before);
  }
  ibv_free_device_list(list);
  CHECK(refused > 3);
  check_device();
}

TEST_CASE("A first use without a free descriptor fails, and a later one does not") {
  run("child: the first use finds too few descriptors");
}

#endif

// No machine has memory for a stack of this size.
TEST_CASE("child: the first use finds no thread", "[.child]") {
  pthread_attr_t usual, huge;
  REQUIRE(pthread_getattr_default_np(&usual) == 0);
  REQUIRE(pthread_getattr_default_np(&huge) == 0);
  REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 46) == 0);
  const std::size_t before = open_descriptors();
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  for (int i = 0; i < 2; ++i) {
    errno = 0;
    CHECK_FALSE(open_soft());
    CHECK(errno == EAGAIN);
    CHECK(open_descriptors() == before);
  }
  REQUIRE(pthread_setattr_default_np(&usual) == 0);
  check_device();
}

TEST_CASE("A first use without a free thread fails, and a later one does not") {
  run("child: the first use finds no thread");
}
