// SPDX-License-Identifier: BSL-1.0
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

#include <iostream>

void test::not_on_this_device(const char* what) {
  std::cout << "not on this device: " << Catch::getResultCapture().getCurrentTestName() << ": "
            << what << std::endl;
}

// Both versions have the session, but the macro for a ready-made main is in different places.
int main(int argc, char* argv[]) { return Catch::Session().run(argc, argv); }
