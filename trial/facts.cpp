// SPDX-License-Identifier: BSL-1.0
#include "facts.hpp"

#include <asio_rdma/version.hpp>

#include <array>
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <link.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <thread>

namespace trial {

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

/// Gb/s of a lane, by the value of `ibv_port_attr::active_speed`.
std::string speed_of(std::uint8_t speed) {
  switch (speed) {
  case 1:
    return "2.5";
  case 2:
    return "5";
  case 4:
  case 8:
    return "10";
  case 16:
    return "14";
  case 32:
    return "25";
  case 64:
    return "50";
  case 128:
    return "100";
  default:
    return "speed " + std::to_string(speed);
  }
}

std::string lanes_of(std::uint8_t width) {
  switch (width) {
  case 1:
    return "1";
  case 2:
    return "4";
  case 4:
    return "8";
  case 8:
    return "12";
  case 16:
    return "2";
  default:
    return "width " + std::to_string(width);
  }
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

} // namespace

void add_facts(session& s) {
  const ibv_device_attr& a = s.dev.attributes();
  const ibv_port_attr p = s.dev.port(s.dev.first_port());
  utsname kernel{};
  ::uname(&kernel);
  const auto number = [&](const char* name, auto value) {
    s.fact(name, std::to_string(value));
  };

  s.fact("library", std::to_string(ASIO_RDMA_VERSION_MAJOR) + '.' +
                        std::to_string(ASIO_RDMA_VERSION_MINOR) + '.' +
                        std::to_string(ASIO_RDMA_VERSION_PATCH));
  s.fact("device", s.dev.name());
  s.fact("transport", s.dev.type() == transport::infiniband ? "InfiniBand or RoCE"
                      : s.dev.type() == transport::iwarp    ? "iWARP"
                                                            : "other");
  s.fact("vendor", hexadecimal(a.vendor_id));
  s.fact("vendor part", std::to_string(a.vendor_part_id));
  s.fact("hardware version", hexadecimal(a.hw_ver));
  s.fact("firmware", a.fw_ver[0] != '\0' ? a.fw_ver : "unknown");
  const std::filesystem::path folder = "/sys/class/infiniband/" + s.dev.name();
  s.fact("board", line_of(folder / "board_id"));
  s.fact("driver", driver_of(folder));
  s.fact("kernel", std::string(kernel.release) + ' ' + kernel.machine);
  s.fact("libibverbs", file_of("libibverbs.so.1"));
  s.fact("librdmacm", file_of("librdmacm.so.1"));
  s.fact("locked memory, limit", limit_of_locked_memory());
  number("processors", std::thread::hardware_concurrency());
  number("ports", unsigned(a.phys_port_cnt));
  s.fact("port state", ibv_port_state_str(p.state));
  s.fact("link layer", layer_of(p));
  s.fact("active MTU", bytes_of(p.active_mtu));
  s.fact("maximum MTU", bytes_of(p.max_mtu));
  s.fact("rate in sysfs", line_of(folder / "ports" / std::to_string(s.dev.first_port()) / "rate"));
  s.fact("rate", lanes_of(p.active_width) + " lanes of " + speed_of(p.active_speed) + " Gb/s");
  number("longest message", s.dev.max_message_bytes());
  s.fact("GIDs", gids_of(s.dev));
  number("max_qp", a.max_qp);
  number("max_qp_wr", a.max_qp_wr);
  number("max_sge", a.max_sge);
  number("max_cq", a.max_cq);
  number("max_cqe", a.max_cqe);
  number("max_srq", a.max_srq);
  number("max_mw", a.max_mw);
  number("max_qp_rd_atom", a.max_qp_rd_atom);
  number("completion vectors", s.dev.native_handle()->num_comp_vectors);
  s.fact("device_cap_flags", hexadecimal(a.device_cap_flags));
  number("atomic_cap", int(a.atomic_cap));
  s.fact("atomics", yes_or_no(s.dev.has_atomics()));
  s.fact("FLUSH", yes_or_no(s.dev.has_flush()));
  s.fact("immediate data", yes_or_no(s.dev.has_immediate()));
  s.fact("memory windows", yes_or_no(s.dev.has_memory_windows()));
  s.fact("invalidation", yes_or_no(s.dev.has_invalidation()));
  s.fact("registration on demand", yes_or_no(s.dev.has_on_demand_paging()));
}

} // namespace trial
