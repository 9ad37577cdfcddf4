// SPDX-License-Identifier: BSL-1.0
// The printed text and the JSON.
#include "catch.hpp"
#include "fake_machine.hpp"
#include "print.hpp"

#include <algorithm>
#include <string>

using test::fake_machine;

TEST_CASE("a finding is a line with its remedy, and the last line is the sum") {
  fake_machine m;
  m.tried.clear();
  m.allow("/dev/infiniband/rdma_cm", 0600);
  const std::string text = m.text();
  CHECK(text.starts_with("asio_rdma-info "));
  CHECK(text.find(", Linux 6.1.0-18-amd64, user ann\n") != std::string::npos);
  CHECK(text.find(
            "\nerror    /dev/infiniband/rdma_cm: the user ann (uid 4711) may not open the file: "
            "mode 0600, owner ") != std::string::npos);
  CHECK(text.find("; remedy: sudo chmod 0666 /dev/infiniband/rdma_cm\n") != std::string::npos);
  CHECK(text.ends_with("\ndoes not work: 1 error, 0 warnings\n"));
  CHECK(std::size_t(std::count(text.begin(), text.end(), '\n')) == m.judge().size() + 2);
  m.allow("/dev/infiniband/rdma_cm", 0666);
  CHECK(m.text().ends_with("\nworks: 0 errors, 0 warnings\n"));
}

TEST_CASE("remedies elsewhere are named so") {
  fake_machine m;
  m.tried.clear();
  m.put("/.dockerenv", "").remove("/sys/class/misc/rdma_cm").remove("/dev/infiniband/rdma_cm");
  m.remove("/usr/lib/x86_64-linux-gnu");
  CHECK(m.text().find("; remedy on the host: modprobe rdma_ucm\n") != std::string::npos);
  CHECK(m.text().find("; remedy in the image: apt install rdma-core") != std::string::npos);
}

TEST_CASE("root needs no sudo") {
  info::facts f;
  const info::remedy r{"a && b", true, info::remedy::place::here};
  CHECK(info::command_of(f, r) == "a && b");
  f.user.uid = 1;
  CHECK(info::command_of(f, r) == "sudo sh -c 'a && b'");
  CHECK(info::command_of(f, {"ulimit -l 1", false, info::remedy::place::here}) == "ulimit -l 1");
}

TEST_CASE("JSON") {
  info::facts f;
  f.kernel = "6.1 \"x\"\\\n";
  f.user.name = "ann";
  const info::findings all{
      {info::level::error, "a", "s", "t", {"mend it", true, info::remedy::place::host}, "d", 2},
      {info::level::ok, "b", "s", "t", {}}};
  const std::string json = info::to_json(f, all);
  CHECK(json.find("\"works\":false,\"kernel\":\"6.1 \\\"x\\\"\\\\\\u000a\"") != std::string::npos);
  CHECK(json.ends_with(
      "\"findings\":[{\"level\":\"error\",\"name\":\"a\",\"subject\":\"s\",\"text\":\"t\","
      "\"device\":\"d\",\"port\":2,\"remedy\":\"mend it\",\"remedy_place\":\"host\"},"
      "{\"level\":\"ok\",\"name\":\"b\",\"subject\":\"s\",\"text\":\"t\"}]}\n"));
}
