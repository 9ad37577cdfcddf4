// SPDX-License-Identifier: BSL-1.0
#include "judge.hpp"

#include "remedies.hpp"

#include <algorithm>
#include <cstdio>

namespace info {
namespace {

/// A device that no folder of sysfs shows, and that was opened: it is within the process.
bool is_within_process(const facts& f, const tried_device& t) {
  return t.open_error.empty() && std::none_of(f.devices.begin(), f.devices.end(),
                                              [&](const auto& d) { return d.name == t.name; });
}

/// Whether an error of `all` concerns a port of a device.
bool has_error_at(const findings& all, const std::string& device, unsigned port) {
  return std::any_of(all.begin(), all.end(), [&](const finding& each) {
    return each.how == level::error && each.device == device &&
           (each.port == 0 || each.port == port);
  });
}

/// One port that works is enough: the faults of the others are warnings.
void soften(const facts& f, const question& q, findings& all) {
  std::string device;
  unsigned port = 0;
  for (const device_facts& d : f.devices)
    for (const port_facts& p : d.ports)
      if (device.empty() && (q.device.empty() || q.device == d.name) &&
          !has_error_at(all, d.name, p.number)) {
        device = d.name;
        port = p.number;
      }
  if (device.empty())
    return;
  for (finding& each : all) {
    const bool concerns = each.device == device && (each.port == 0 || each.port == port);
    if (each.how == level::error && !each.device.empty() && !concerns)
      each.how = level::warning;
  }
}

} // namespace

const tried_device* find_tried(const facts& f, const std::string& device) {
  const auto found = std::find_if(f.tried.devices.begin(), f.tried.devices.end(),
                                  [&](const tried_device& t) { return t.name == device; });
  return found != f.tried.devices.end() ? &*found : nullptr;
}

bool has_error(const findings& all) {
  return std::any_of(all.begin(), all.end(),
                     [](const finding& each) { return each.how == level::error; });
}

void judge_tried(const facts& f, const question& q, findings& to) {
  if (!f.tried.ran || !f.tried.failure.empty()) {
    const bool known = has_error(to); // such as an absent libibverbs
    if (!f.tried.failure.empty())
      to.push_back({known || !f.tried.ran ? level::note : level::error,
                    "trial_failed",
                    "trial",
                    "no device was tried to the end: " + f.tried.failure,
                    {}});
  }
  for (const device_facts& d : f.devices)
    if (f.tried.ran && f.tried.failure.empty() && find_tried(f, d.name) == nullptr &&
        (q.device.empty() || q.device == d.name))
      to.push_back({has_error(to) ? level::note : level::error, "device_not_listed", d.name,
                    "libibverbs does not list the device", by_user("ibv_devices"), d.name});
  for (const tried_device& t : f.tried.devices) {
    if (!q.device.empty() && q.device != t.name)
      continue;
    finding result{level::error, "", t.name, "", {}, t.name};
    if (!t.open_error.empty()) {
      result.name = "open_failed";
      result.text = "the library cannot open the device: " + t.open_error;
      // The reason has been found if there is one.
      if (has_error(to))
        result.how = level::note;
      to.push_back(result);
      continue;
    }
    if (is_within_process(f, t))
      to.push_back({level::ok,
                    "software_device",
                    t.name,
                    "a software device within the process (asio_rdma's soft), for development and "
                    "tests; it needs no kernel",
                    {},
                    t.name});
    if (t.transport == "other") {
      result.name = "no_reliable_connections";
      result.text = "the device has no reliable connections, which connections and streams need";
      to.push_back(result);
      continue;
    }
    const auto report = [&](const char* name, const std::optional<std::string>& end, level how,
                            const std::string& good, const std::string& bad) {
      if (!end)
        return;
      result.name = name;
      result.how = end->empty() ? level::ok : how;
      result.text = end->empty() ? good : bad + ": " + *end;
      if (!end->empty() && has_error(to))
        result.how = std::min(result.how, level::note);
      to.push_back(result);
    };
    report("memory", t.memory, level::error, "registers memory", "cannot register memory");
    report("listen", t.listen, level::error, "listens at " + t.address,
           "cannot listen at " + t.address);
    char time[32];
    std::snprintf(time, sizeof time, "%.0f", t.microseconds);
    report("message", t.message, level::warning,
           "a message to itself at " + t.address + " was answered in " + time + " us",
           "does not connect to itself at " + t.address);
  }
}

findings judge(const facts& f, const question& q) {
  facts known = f;
  // The MTU is no file: opening the device tells it.
  for (device_facts& d : known.devices)
    if (const tried_device* const t = find_tried(f, d.name))
      for (port_facts& p : d.ports)
        if (const auto port = t->ports.find(p.number); port != t->ports.end()) {
          p.active_mtu = port->second.active_mtu;
          p.max_mtu = port->second.max_mtu;
        }
  if (!q.device.empty())
    std::erase_if(known.devices, [&](const device_facts& d) { return d.name != q.device; });

  findings result;
  judge_process(known, result);
  judge_namespaces(known, result);
  if (!q.device.empty() && known.devices.empty() && find_tried(f, q.device) == nullptr &&
      !f.devices.empty())
    result.push_back({level::error, "device_unknown", q.device, "there is no device of that name",
                      by_user("rdma link")});
  else
    judge_absence(known, result);
  judge_files(known, result);
  for (const device_facts& d : known.devices)
    judge_device(known, d, result);
  soften(known, q, result);

  for (const tried_device& t : f.tried.devices) {
    const bool of_process = is_within_process(f, t), proven = t.message == std::string();
    if ((!of_process && !proven) || (!q.device.empty() && q.device != t.name))
      continue;
    // A connection to itself may need no link.
    for (finding& each : result)
      if (of_process || each.name != "port_down")
        each.how = std::min(each.how, of_process ? level::note : level::warning);
  }
  if (!q.address.empty())
    judge_address(known, q.address, result);
  judge_tried(f, q, result);
  return result;
}

} // namespace info
