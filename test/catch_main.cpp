// SPDX-License-Identifier: BSL-1.0
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

// Both versions have the session, and its macro for a ready-made main is in different places.
int main(int argc, char* argv[]) { return Catch::Session().run(argc, argv); }
