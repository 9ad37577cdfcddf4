// SPDX-License-Identifier: BSL-1.0
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

// Catch2 2 and 3 have the session, but the macro for a ready-made main is in different places.
int main(int argc, char* argv[]) { return Catch::Session().run(argc, argv); }
