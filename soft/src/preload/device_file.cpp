// SPDX-License-Identifier: BSL-1.0
// stat(2) and access(2) for programs that use a device only if its file under /dev/infiniband can
// be read and written, as UCX (src/uct/ib/base/ib_md.c). The software device has no file; a file of
// its name is answered for by /dev/null, a character device that everyone may use. Other functions,
// open(2) among them, find no such file.
//
// A library of its own, which soft/run loads: a program that is linked with the device keeps the
// functions of its C library.
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOFT_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

const char* answering(const char* path) noexcept {
  return path != nullptr && std::strcmp(path, "/dev/infiniband/soft0") == 0 ? "/dev/null" : path;
}

} // namespace

SOFT_EXPORT int stat(const char* path, struct stat* to) noexcept {
  return fstatat(AT_FDCWD, answering(path), to, 0);
}
SOFT_EXPORT int stat64(const char* path, struct stat64* to) noexcept {
  return fstatat64(AT_FDCWD, answering(path), to, 0);
}
SOFT_EXPORT int access(const char* path, int mode) noexcept {
  return faccessat(AT_FDCWD, answering(path), mode, 0);
}
