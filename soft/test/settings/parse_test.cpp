// SPDX-License-Identifier: BSL-1.0
#include "settings/settings.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <limits>
#include <string>

using namespace soft;
using namespace std::chrono_literals;

namespace {

constexpr auto for_ever = std::numeric_limits<std::uint64_t>::max();

settings read(std::string_view text) {
  settings s;
  const auto error = parse(text, s);
  INFO(text);
  CAPTURE(error ? error->what : "");
  REQUIRE_FALSE(error);
  return s;
}

fault read_fault(std::string_view text) {
  const settings s = read(text);
  REQUIRE(s.faults.size() == 1);
  return s.faults.front();
}

// The part of a text that is wrong.
std::string wrong_part(std::string_view text) {
  settings s;
  const auto error = parse(text, s);
  INFO(text);
  REQUIRE(error);
  CHECK(std::string_view(error->what) != "");
  REQUIRE(error->position + error->length <= text.size());
  return std::string(text.substr(error->position, error->length));
}

} // namespace

TEST_CASE("An empty text sets nothing") {
  for (const char* text : {"", " ", "\t\n"}) {
    const settings s = read(text);
    CHECK(s.kind.name == "plain");
    CHECK(s.latency == 0ns);
    CHECK(s.rate == 0);
    CHECK(s.answer == 65s);
    CHECK(s.faults.empty());
  }
}

TEST_CASE("Each personality is found by its name") {
  for (const char* name : {"plain", "mlx5", "irdma", "bnxt_re", "erdma", "efa"})
    CHECK(read(name).kind.name == name);
  CHECK(find_personality("mlx") == nullptr);
}

TEST_CASE("A list sets every item of it") {
  const settings s = read("mlx5,latency=1.2us,rate=100Gb,seed=7,answer=2s,fail=send:3:rnr_retry");
  CHECK(s.kind.name == "mlx5");
  CHECK(s.latency == 1200ns);
  CHECK(s.rate == 100e9);
  CHECK(s.seed == 7);
  CHECK(s.answer == 2s);
  REQUIRE(s.faults.size() == 1);
  CHECK(s.faults[0].places == bit_of(place::send));
  CHECK(s.faults[0].value == IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_CASE("Blanks around items are skipped, and those within an item are wrong") {
  CHECK(read(" mlx5 , seed=7 ").seed == 7);
  CHECK(wrong_part("seed = 7") == "seed = 7");
  CHECK(wrong_part("latency=1 us") == "1 us");
}

TEST_CASE("A time has a unit, and a fraction of a nanosecond is rounded up") {
  CHECK(read("latency=800ns").latency == 800ns);
  CHECK(read("latency=0.5ns").latency == 1ns);
  CHECK(read("latency=2ms").latency == 2ms);
  CHECK(read("latency=1s").latency == 1s);
  CHECK(read("mlx5,latency=0").latency == 0ns);
  CHECK(wrong_part("latency=5") == "5");
  CHECK(wrong_part("latency=us") == "us");
  CHECK(wrong_part("latency=-1us") == "-1us");
  CHECK(wrong_part("latency=1.us") == "1.us");
  CHECK(wrong_part("latency=1m,seed=1") == "1m");
  CHECK(wrong_part("latency=1.5s") == "1.5s");
  CHECK(wrong_part("latency=99999999999999999999999ns") == "99999999999999999999999ns");
}

TEST_CASE("A rate has a unit, and is above 0") {
  CHECK(read("rate=1.5Mb").rate == 1.5e6);
  CHECK(read("rate=25Kb").rate == 25e3);
  for (const char* part : {"0", "0Gb", "100", "100gb", "Gb", ""})
    CHECK(wrong_part(std::string("rate=") + part) == part);
}

TEST_CASE("The direct wire has jitter, and a thread that carries out requests") {
  CHECK(read("").jitter == 0ns);
  CHECK_FALSE(read("mlx5").at_post);
  CHECK(read("jitter=2us").jitter == 2us);
  CHECK(read("at_post=1").at_post);
  CHECK(wrong_part("jitter=2") == "2");
  CHECK(wrong_part("at_post=yes") == "yes");
}

TEST_CASE("Values of a personality are replaced one by one") {
  const settings s = read("mlx5,create=3ms,destroy=2ms,late_last_wqe=1ms,no_last_wqe=1,"
                          "taken_receives=3,late_placement=7ms,stale=4,ece=2,grh_required=0,"
                          "untold_route=1,last_wqe_only_without_error=1,late_failure=8ms,"
                          "drops_completions=0,eio_after_removal=0,header_in_sl=0,removal=5ms,"
                          "removal_notice=6ms,ids_last=1,"
                          "send_elements=3,receive_elements=2,max_inline=48,max_message=1048576,"
                          "max_datagram=1024,vectors=4,infiniband=1");
  CHECK(s.kind.removal == 5ms);
  CHECK(s.kind.removal_notice == 6ms);
  CHECK(s.kind.ids_last);
  CHECK(s.kind.create == 3ms);
  CHECK(s.kind.destroy == 2ms);
  CHECK(s.kind.late_last_wqe == 1ms);
  CHECK(s.kind.no_last_wqe);
  CHECK(s.kind.untold_route);
  CHECK(s.kind.last_wqe_only_without_error);
  CHECK(s.kind.late_failure == 8ms);
  CHECK(s.kind.taken_receives == 3);
  CHECK(s.kind.late_placement == 7ms);
  CHECK(s.kind.stale_rejects == 4);
  CHECK(s.kind.ece_options == 2);
  CHECK(s.kind.ece_vendor == 0x15b3);
  CHECK_FALSE(s.kind.grh_required);
  CHECK_FALSE(s.kind.drops_completions);
  CHECK_FALSE(s.kind.eio_after_removal);
  CHECK_FALSE(s.kind.header_in_sl);
  CHECK(s.kind.send_elements == 3);
  CHECK(s.kind.read_elements == 3); // no more than those of other requests
  CHECK(s.kind.receive_elements == 2);
  CHECK(s.kind.inline_bytes == 48);
  CHECK(s.kind.message_bytes == 1 << 20);
  CHECK(s.kind.datagram_bytes == 1024);
  CHECK(s.kind.vectors == 4);
  CHECK(s.kind.infiniband);
  CHECK(s.kind.reads == 16);
  for (const char* part : {"0", "33", "x"})
    CHECK(wrong_part(std::string("send_elements=") + part) == part);
  CHECK(wrong_part("vectors=0") == "0");
  CHECK(wrong_part("taken_receives=65") == "65");
  CHECK(wrong_part("max_message=4096") == "4096");
  CHECK(wrong_part("max_datagram=255") == "255");
  CHECK(wrong_part("max_datagram=4097") == "4097");
  CHECK(wrong_part("max_inline=65536") == "65536");
  CHECK(wrong_part("grh_required=2") == "2");
  CHECK_FALSE(read("").kind.locks_memory);
  CHECK(read("mlx5").kind.locks_memory);
  CHECK(read("locks_memory=1").kind.locks_memory);
  CHECK(wrong_part("stale=4294967296") == "4294967296");
}

TEST_CASE("Whether connections ask for CRCs may be set, with any personality") {
  CHECK_FALSE(read("mlx5").crc.has_value());
  CHECK(read("crc=1,mlx5").crc == true);
  CHECK(read("crc=0").crc == false);
  CHECK(wrong_part("crc=2") == "2");
}

TEST_CASE("The type of service of rdma_cm has eight bits") {
  CHECK(read("mlx5").tos == 0);
  CHECK(read("tos=106,mlx5").tos == 106);
  CHECK(wrong_part("tos=256") == "256");
}

TEST_CASE("There is one personality, before the values that replace its own") {
  CHECK(wrong_part("mlx5,efa") == "efa");
  CHECK(wrong_part("mlx5,mlx5") == "mlx5");
  CHECK(wrong_part("latency=1us,mlx5") == "mlx5");
  CHECK(read("seed=3,mlx5").kind.name == "mlx5");
}

TEST_CASE("An unknown word is named") {
  CHECK(wrong_part("mlx6") == "mlx6");
  CHECK(wrong_part("plain,latncy=1us") == "latncy=1us");
  CHECK(wrong_part("plain,,seed=1") == "");
  CHECK(wrong_part("plain,") == "");
  CHECK(wrong_part(",plain") == "");
  CHECK(wrong_part("seed=7x") == "x");
  CHECK(wrong_part("seed=") == "");
  CHECK(wrong_part("seed=18446744073709551616") == "18446744073709551616");
  CHECK(wrong_part("MLX5") == "MLX5");
}

TEST_CASE("A text that is wrong leaves the settings as they were") {
  settings s = read("mlx5,seed=9");
  REQUIRE(parse("seed=1,nonsense", s));
  CHECK(s.seed == 9);
  CHECK(s.kind.name == "mlx5");
}

TEST_CASE("Occasions are one, a range, all from one on, all, or a part of all") {
  const auto occasions = [](std::string_view when) {
    const fault f = read_fault("fail=create_qp:" + std::string(when) + ":enomem");
    return std::tuple(f.first, f.last, f.probability);
  };
  CHECK(occasions("3") == std::tuple(3u, 3u, 1.0));
  CHECK(occasions("3-5") == std::tuple(3u, 5u, 1.0));
  CHECK(occasions("3+") == std::tuple(3u, for_ever, 1.0));
  CHECK(occasions("all") == std::tuple(1u, for_ever, 1.0));
  CHECK(occasions("25%") == std::tuple(1u, for_ever, 0.25));
  CHECK(occasions("0.5%") == std::tuple(1u, for_ever, 0.005));
  for (const char* when : {"0", "5-3", "101%", "some", "", "-3", "1.5"})
    CHECK(wrong_part("fail=create_qp:" + std::string(when) + ":enomem") != "");
}

TEST_CASE(
    "Requests and receives fail with a status, calls with an error, connecting with a reason") {
  CHECK(read_fault("fail=recv:1:loc_prot").value == IBV_WC_LOC_PROT_ERR);
  CHECK(read_fault("fail=request:1:retry").places == request_places);
  CHECK(read_fault("fail=reg_mr:1:enomem").value == ENOMEM);
  CHECK(read_fault("fail=connect:1:stale").value == 10);
  CHECK(wrong_part("fail=send:1:enomem") == "enomem");
  CHECK(wrong_part("fail=reg_mr:1:retry") == "retry");
  CHECK(wrong_part("fail=connect:1:retry") == "retry");
  CHECK(wrong_part("fail=send:1") == "");
  CHECK(wrong_part("fail=now:enomem") == "now:enomem");
  CHECK(wrong_part("fail=sent:1:retry") == "sent:1:retry");
}

TEST_CASE("A delay has a time, and no place after the fact") {
  const fault f = read_fault("delay=send:2+:10ms");
  CHECK(f.what == action::delay);
  CHECK(f.time == 10ms);
  CHECK(read_fault("delay=create_qp:all:1s").time == 1s);
  CHECK(read_fault("delay=connect:1:1s").time == 1s);
  CHECK(wrong_part("delay=recv:1:1ms") == "recv:1:1ms");
  CHECK(wrong_part("delay=send:1:retry") == "retry");
  CHECK(wrong_part("delay=send:1:2h") == "2h");
}

TEST_CASE("A link is dropped, or a peer killed, at a request, at a receive, or now") {
  CHECK(read_fault("drop=send:3").what == action::drop);
  CHECK(read_fault("kill=recv:1").what == action::kill);
  CHECK(read_fault("drop=now").places == bit_of(place::now));
  CHECK(wrong_part("drop=create_qp:1") == "create_qp:1");
  CHECK(wrong_part("drop=send") == "");
  CHECK(wrong_part("drop=send:1:retry") == ":retry");
  CHECK(wrong_part("kill=now:1") == ":1");
}

TEST_CASE("A link is down for a time, from a request, from a receive, or from now on") {
  const fault f = read_fault("flap=send:3:5s");
  CHECK(f.what == action::flap);
  CHECK(f.first == 3);
  CHECK(f.time == 5s);
  CHECK(read_fault("flap=recv:1%:20ms").probability == 0.01);
  CHECK(read_fault("flap=now:200ms").places == bit_of(place::now));
  CHECK(read_fault("flap=now:200ms").time == 200ms);
  CHECK(wrong_part("flap=connect:1:1s") == "connect:1:1s");
  CHECK(wrong_part("flap=now") == "");
  CHECK(wrong_part("flap=send:1") == "");
  CHECK(wrong_part("flap=now:retry") == "retry");
  CHECK(wrong_part("flap=now:2h") == "2h");
}

TEST_CASE("An event of an object needs a request or a receive") {
  CHECK(read_fault("event=now:port_err").value == IBV_EVENT_PORT_ERR);
  CHECK(read_fault("event=send:1:qp_fatal").value == IBV_EVENT_QP_FATAL);
  CHECK(wrong_part("event=now:qp_fatal") == "qp_fatal");
  CHECK(wrong_part("event=send:1:port") == "port");
}

TEST_CASE("No text crashes the parser or is accepted with a part that was not read") {
  const std::string_view base = "mlx5,latency=1.2us,rate=100Gb,seed=7,fail=send:3-5:rnr_retry,"
                                "delay=write:2%:1ms,drop=now,flap=recv:3:1ms,event=now:port_err";
  for (std::size_t n = 0; n <= base.size(); ++n) {
    settings s;
    (void)parse(base.substr(0, n), s);
    for (const char c : {'\0', ',', ':', '=', '%', '-', '9', '.', '\xff'}) {
      std::string changed(base);
      if (n < base.size())
        changed[n] = c;
      const auto error = parse(changed, s);
      if (error)
        CHECK(error->position + error->length <= changed.size());
    }
  }
  settings s;
  CHECK_FALSE(parse(base, s));
}
