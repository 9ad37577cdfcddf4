// SPDX-License-Identifier: BSL-1.0
#include "support/processes.hpp"

#include "support/fixture.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ; // NOLINT

namespace soft::test {
child::child(const std::string& test_case, const variables& environment) {
  std::vector<std::string> kept;
  for (char** v = environ; *v != nullptr; ++v) {
    const std::string entry(*v);
    bool replaced = false;
    for (const auto& [name, value] : environment)
      replaced = replaced || entry.compare(0, name.size() + 1, name + "=") == 0;
    if (!replaced)
      kept.push_back(entry);
  }
  for (const auto& [name, value] : environment)
    kept.push_back(name + "=" + value);
  std::vector<char*> entries;
  for (std::string& entry : kept)
    entries.push_back(entry.data());
  entries.push_back(nullptr);
  std::string program = "/proc/self/exe", name = test_case;
  char* arguments[] = {program.data(), name.data(), nullptr};
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  errors_ = ends[0];
  int channel[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) == 0);
  channel_ = channel[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  posix_spawn_file_actions_adddup2(&actions, channel[1], parent_channel);
  const int error =
      posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, entries.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  close(channel[1]);
  REQUIRE(error == 0);
}

void child::stop() {
  REQUIRE(::kill(pid_, SIGSTOP) == 0);
  int status = 0;
  REQUIRE(waitpid(pid_, &status, WUNTRACED) == pid_);
  REQUIRE(WIFSTOPPED(status));
}

void child::kill() { REQUIRE(::kill(pid_, SIGKILL) == 0); }

int child::wait(std::string* said) {
  std::string all;
  char buffer[512];
  for (ssize_t n = 0; (n = read(errors_, buffer, sizeof(buffer))) > 0;)
    all.append(buffer, static_cast<std::size_t>(n));
  close(errors_);
  close(channel_);
  int status = 0;
  REQUIRE(waitpid(pid_, &status, 0) == pid_);
  if (said != nullptr)
    *said = all;
  else if (!all.empty())
    UNSCOPED_INFO(all);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void trade(int channel, std::span<const std::byte> own, std::span<std::byte> theirs) {
  REQUIRE(::send(channel, own.data(), own.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(own.size()));
  REQUIRE(::recv(channel, theirs.data(), theirs.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(theirs.size()));
}

void meet(int channel) { trade(channel, std::byte{}); }

endpoint::~endpoint() {
  if (id == nullptr)
    return;
  if (id->qp != nullptr)
    rdma_destroy_qp(id);
  rdma_destroy_id(id);
}

void make_queue_pair(rdma_cm_id* id, ibv_qp_type type, std::uint32_t depth) {
  ibv_qp_init_attr init{};
  init.cap.max_send_wr = init.cap.max_recv_wr = depth;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.qp_type = type;
  init.sq_sig_all = 1;
  REQUIRE(rdma_create_qp(id, nullptr, &init) == 0);
}

void endpoint::make_queue_pair() { test::make_queue_pair(id, IBV_QPT_RC, 64); }

rdma_cm_id* bound_to(const char* address) {
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in a = local_address(0);
  REQUIRE(inet_pton(AF_INET, address, &a.sin_addr) == 1);
  REQUIRE(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&a)) == 0);
  return id;
}

std::pair<rdma_cm_id*, std::string> listen() {
  rdma_cm_id* const id = bound_to();
  REQUIRE(rdma_listen(id, 8) == 0);
  return {id, std::to_string(ntohs(rdma_get_src_port(id)))};
}

void resolve(endpoint& e, const std::string& port) {
  REQUIRE(rdma_create_id(nullptr, &e.id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in a = local_address(static_cast<std::uint16_t>(std::stoi(port)));
  REQUIRE(rdma_resolve_addr(e.id, nullptr, reinterpret_cast<sockaddr*>(&a), 1000) == 0);
  REQUIRE(rdma_resolve_route(e.id, 1000) == 0);
  e.make_queue_pair();
}

int connect(endpoint& e) {
  rdma_conn_param p{};
  p.initiator_depth = p.responder_resources = 4;
  p.retry_count = 1;
  p.rnr_retry_count = 7;
  return rdma_connect(e.id, &p);
}

int accept(endpoint& e) { return rdma_accept(e.id, nullptr); }

} // namespace soft::test
