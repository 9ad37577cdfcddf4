// SPDX-License-Identifier: BSL-1.0
#pragma once

// Catch2 3 under the name that the header of Catch2 2 (Debian 12) has.
#include <catch2/catch_all.hpp>

namespace Catch {

inline std::uint32_t rngSeed() { return getSeed(); }

} // namespace Catch
