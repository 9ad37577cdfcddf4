// SPDX-License-Identifier: BSL-1.0
#include "settings/personality.hpp"

#include <catch2/catch.hpp>

using namespace soft;

TEST_CASE("The limits of a personality fit the software device's memory of a request") {
  for (const char* name : {"plain", "mlx5", "irdma", "bnxt_re", "erdma", "efa"}) {
    INFO(name);
    const personality& p = *find_personality(name);
    CHECK(p.send_elements <= 32);
    CHECK(p.receive_elements <= 32);
    CHECK(p.read_elements <= p.send_elements);
    // The elements of a request and its inline data share memory, of which a queue pair reports as
    // much as there is.
    CHECK(p.inline_bytes >= p.send_elements * sizeof(ibv_sge));
    CHECK(p.inline_bytes <= 65535);
    CHECK(p.reads <= 128);
    CHECK((p.reliable || p.datagrams));
    CHECK(p.message_bytes >= p.inline_bytes);
    CHECK((p.no_windows != 0 || (p.window_flags && p.windows != 0)));
    CHECK((p.late_last_wqe.count() == 0 || p.shared_receives));
  }
}
