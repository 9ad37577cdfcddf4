// SPDX-License-Identifier: BSL-1.0
#include "facts.hpp"

#include "build.hpp"
#include "report.hpp"

#include <asio_rdma/version.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <link.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <thread>
#include <unistd.h>

namespace trial {

using namespace asio_rdma;

namespace {

std::string hexadecimal(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%04x", value);
  return text;
}

/// The name of the file of a loaded library. Its last number but one is the version of rdma-core:
/// libibverbs.so.1.14.44.0 is of rdma-core 44.
std::string file_of(const char* library) {
  std::string result = "unknown";
  if (void* const handle = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
    link_map* map = nullptr;
    std::error_code ec;
    if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) {
      const auto file = std::filesystem::canonical(map->l_name, ec);
      if (!ec)
        result = file.filename();
    }
    ::dlclose(handle);
  }
  return result;
}

std::string layer_of(const ibv_port_attr& p) {
  switch (p.link_layer) {
  case IBV_LINK_LAYER_INFINIBAND:
    return "InfiniBand";
  case IBV_LINK_LAYER_ETHERNET:
    return "Ethernet";
  default:
    return "unspecified";
  }
}

std::string bytes_of(ibv_mtu mtu) { return std::to_string(128u << unsigned(mtu)); }

std::string rate_of(std::uint32_t megabits) {
  std::ostringstream out;
  if (megabits == 0)
    out << "unknown";
  else
    out << megabits / 1000.0 << " Gb/s";
  return out.str();
}

/// The first line of a file of sysfs, or "unknown".
std::string line_of(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line.empty() ? "unknown" : line;
}

/// The kernel's driver, and its version if it has one of its own.
std::string driver_of(const std::filesystem::path& device) {
  std::error_code ec;
  const auto link = std::filesystem::read_symlink(device / "device/driver/module", ec);
  if (ec)
    return "unknown";
  const std::string version = line_of("/sys/module" / link.filename() / "version");
  return link.filename().string() + (version == "unknown" ? "" : ' ' + version);
}

std::string limit_of_locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "none" : std::to_string(limit.rlim_cur) + " bytes";
}

std::string gids_of(const device& d) {
  std::array<int, 3> counts{};
  for (const gid_entry& g : d.gids())
    ++counts.at(std::size_t(g.type));
  return std::to_string(counts[0]) + " InfiniBand or iWARP, " + std::to_string(counts[1]) +
         " RoCE v1, " + std::to_string(counts[2]) + " RoCE v2";
}

const char* yes_or_no(bool b) { return b ? "yes" : "no"; }

/// The value of a variable without what may be personal: a path may name a person or a project.
std::string without_places(std::string_view value) {
  std::string result, word;
  const auto is_space = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  const auto end_word = [&] {
    result += word.find('/') == std::string::npos ? word : "(path)";
    word.clear();
  };
  for (const char c : value) {
    if (!is_space(c) && c != ',' && c != ';' && c != '=') {
      word += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
      continue;
    }
    end_word();
    result += is_space(c) ? ' ' : c; // a fact is one line
  }
  end_word();
  return without_names(result, {}); // other names are the caller's to remove
}

} // namespace

std::string environment_of(const char* const* variables) {
  constexpr std::string_view prefixes[] = {"MLX5_", "MLX4_", "RDMAV_",    "IBV_",
                                           "HFI_",  "EFA_",  "ASIO_RDMA_"};
  std::vector<std::string> found;
  for (; *variables != nullptr; ++variables) {
    const std::string_view each = *variables;
    const std::size_t name = std::min(each.find('='), each.size());
    if (std::any_of(std::begin(prefixes), std::end(prefixes),
                    [each](std::string_view prefix) { return each.starts_with(prefix); }))
      found.push_back(without_places(each.substr(0, name)) + '=' +
                      without_places(each.substr(std::min(name + 1, each.size()))));
  }
  std::sort(found.begin(), found.end());
  std::string result;
  for (const std::string& each : found)
    result += (result.empty() ? "" : "; ") + each;
  return result.empty() ? "none" : result;
}

facts facts_of(const device& d) {
  facts result;
  const ibv_device_attr& a = d.attributes();
  const ibv_port_attr p = d.port(d.first_port());
  utsname kernel{};
  ::uname(&kernel);
  const auto add = [&](const char* name, std::string value) {
    result.emplace_back(name, std::move(value));
  };
  const auto number = [&](const char* name, auto value) {
    add(name, std::to_string(value));
  };

  add("library", std::to_string(ASIO_RDMA_VERSION_MAJOR) + '.' +
                     std::to_string(ASIO_RDMA_VERSION_MINOR) + '.' +
                     std::to_string(ASIO_RDMA_VERSION_PATCH));
  add("commit", build::commit);
  add("build type", build::type);
  add("compiler", build::compiler);
  add("built with rdma-core", build::rdma_core);
  add("device", d.name());
  add("transport", d.type() == transport::infiniband ? "InfiniBand or RoCE"
                   : d.type() == transport::iwarp    ? "iWARP"
                                                     : "other");
  add("vendor", hexadecimal(a.vendor_id));
  add("vendor part", std::to_string(a.vendor_part_id));
  add("hardware version", hexadecimal(a.hw_ver));
  add("firmware", a.fw_ver[0] != '\0' ? a.fw_ver : "unknown");
  const std::filesystem::path folder = "/sys/class/infiniband/" + d.name();
  add("board", line_of(folder / "board_id"));
  add("driver", driver_of(folder));
  add("kernel", std::string(kernel.release) + ' ' + kernel.machine);
  add("libibverbs", file_of("libibverbs.so.1"));
  add("librdmacm", file_of("librdmacm.so.1"));
  add("environment", environment_of(environ));
  add("locked memory, limit", limit_of_locked_memory());
  number("processors", std::thread::hardware_concurrency());
  number("ports", unsigned(a.phys_port_cnt));
  add("port state", ibv_port_state_str(p.state));
  add("link layer", layer_of(p));
  add("active MTU", bytes_of(p.active_mtu));
  add("maximum MTU", bytes_of(p.max_mtu));
  add("rate in sysfs", line_of(folder / "ports" / std::to_string(d.first_port()) / "rate"));
  add("rate", rate_of(d.megabits(d.first_port())));
  number("longest message", d.max_message_bytes());
  add("GIDs", gids_of(d));
  number("max_qp", a.max_qp);
  number("max_qp_wr", a.max_qp_wr);
  number("max_sge", a.max_sge);
  number("max_cq", a.max_cq);
  number("max_cqe", a.max_cqe);
  number("max_srq", a.max_srq);
  number("max_mw", a.max_mw);
  number("max_qp_rd_atom", a.max_qp_rd_atom);
  number("completion vectors", d.native_handle()->num_comp_vectors);
  add("device_cap_flags", hexadecimal(a.device_cap_flags));
  number("atomic_cap", int(a.atomic_cap));
  add("atomics", yes_or_no(d.has_atomics()));
  add("FLUSH", yes_or_no(d.has_flush()));
  add("immediate data", yes_or_no(d.has_immediate()));
  add("memory windows", yes_or_no(d.has_memory_windows()));
  add("invalidation", yes_or_no(d.has_invalidation()));
  add("registration on demand", yes_or_no(d.has_on_demand_paging()));
  return result;
}

} // namespace trial
