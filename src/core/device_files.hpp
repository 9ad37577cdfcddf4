// SPDX-License-Identifier: BSL-1.0
// After an error of libibverbs or librdmacm: which file, provider or module is missing.
#pragma once

#include <asio_rdma/error.hpp>

#include <span>
#include <string>
#include <vector>

namespace asio_rdma::detail {

/// The folders that the kernel's devices and their files are in. Tests have other ones.
struct device_folders {
  std::string classes = "/sys/class";
  std::string files = "/dev/infiniband";
};

/// Why the process may not open the file of that name in `files`: `error::device_permission`,
/// `error::device_file_missing`, or `otherwise` if it opens the file or the reason is another one.
/// The text of the error names the file.
error_code file_error(const device_folders& in, const std::string& name,
                      const error_code& otherwise);

/// Why libibverbs, which lists the devices `listed`, does not list another one that the kernel has.
/// Only `device` is examined, or every one if it is empty. `error::module_missing`,
/// `error::device_file_missing`, `error::provider_missing`, or `otherwise` if there is none.
error_code unlisted_error(const device_folders& in, const std::string& device,
                          std::span<const std::string> listed, const error_code& otherwise);

/// Why librdmacm could not open its file: as `file_error`, or `error::module_missing`.
error_code cm_file_error(const device_folders& in, const error_code& otherwise);

/// Whether a call that has failed with this errno value may not have found its file, or not have
/// been permitted to open it. If libibverbs cannot open a file, it searches for another one
/// (`open_cdev_robust` in util/open_cdev.c of rdma-core), which replaces the value.
bool may_lack_file(int value) noexcept;

/// The devices of libibverbs' list.
std::vector<std::string> listed_devices();

/// After a call of librdmacm has failed for lack of a device, or of its file: the errors of
/// `unlisted_error`, `file_error` of a device, and `cm_file_error`, in this order.
error_code cm_open_error(int value, const error_code& otherwise);

/// If the process may open the file of no device that libibverbs lists: the error of the first one.
/// An acceptor at the addresses of all devices would get no request then: librdmacm drops those of
/// devices that it cannot open (`ucma_process_conn_req` in librdmacm/cma.c).
error_code unusable_error();

/// The error of a registration that failed with ENOMEM. Its text has the limit on locked memory.
error_code locked_memory_error() noexcept;

/// The error of a verb that has returned no object. A provider need not set errno: libsiw does not
/// if the kernel maps a queue at the offset that stands for none (siw_create_cq in
/// providers/siw/siw.c).
error_code creation_error() noexcept;

} // namespace asio_rdma::detail
