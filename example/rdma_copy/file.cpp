// SPDX-License-Identifier: BSL-1.0
#include "file.hpp"

#include "copy_error.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <openssl/evp.h>
#include <unistd.h>
#include <utility>

namespace {

using protocol::reason;

reason reason_of(int error) {
  switch (error) {
  case ENOSPC:
  case EDQUOT:
  case EFBIG:
    return reason::no_space;
  case EACCES:
  case EPERM:
  case EROFS:
    return reason::no_access;
  case EISDIR:
    return reason::not_a_file;
  default:
    return reason::io;
  }
}

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw copy_error(path.string() + ": " + std::strerror(error), reason_of(error));
}

// Non-blocking: opening a FIFO would wait for its writer before it could be refused.
int open_source(const std::filesystem::path& path) {
  if (path.empty())
    throw copy_error("the file's name is empty");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    fail(path, errno);
  return fd;
}

void must_be_replaceable(const std::filesystem::path& path) {
  struct stat s {};
  if (::lstat(path.c_str(), &s) == 0) {
    if (!S_ISREG(s.st_mode))
      throw copy_error(path.string() + ": exists and is not a regular file", reason::not_a_file);
  } else if (errno != ENOENT) {
    fail(path, errno);
  }
}

std::string temporary_name(const std::filesystem::path& path) {
  return (path.parent_path() / ".rdma_copy.XXXXXX").string();
}

// The process's umask can only be read by changing it, so it is read before there are threads.
const mode_t creation_mask = [] {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}();

int make_temporary(const std::filesystem::path& path, std::string& name) {
  must_be_replaceable(path);
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0)
    fail(path, errno);
  return fd;
}

} // namespace

// --- Hash ------------------------------------------------------------------------------------

hasher::hasher() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
}

hasher::~hasher() { EVP_MD_CTX_free(context_); }

void hasher::add(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(context_, bytes.data(), bytes.size()) != 1)
    throw copy_error("SHA-256 failed", reason::io);
}

protocol::sha256 hasher::finish() {
  protocol::sha256 result;
  if (EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(result.data()), nullptr) != 1)
    throw copy_error("SHA-256 failed", reason::io);
  return result;
}

std::string to_hex(const protocol::sha256& hash) {
  std::string result;
  for (const std::byte b : hash) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(b));
    result += digits;
  }
  return result;
}

descriptor::~descriptor() { ::close(fd_); }

// --- The file that is sent -------------------------------------------------------------------

source_file::source_file(const std::filesystem::path& path)
    : path_(path), file_(open_source(path)) {
  if (::fstat(file_.get(), &before_) != 0)
    fail(path_, errno);
  if (!S_ISREG(before_.st_mode))
    throw copy_error(path_.string() + ": not a regular file");
  if (name().size() > protocol::max_name)
    throw copy_error(path_.string() + ": name too long");
  if (!protocol::is_name(name()))
    throw copy_error(path_.string() + ": a control character is in its name");
}

std::string source_file::name() const { return path_.filename().string(); }

void source_file::read(std::span<std::byte> into) {
  std::span<std::byte> left = into;
  while (!left.empty()) {
    const ssize_t n = ::read(file_.get(), left.data(), left.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail(path_, errno);
    if (n == 0)
      changed();
    left = left.subspan(static_cast<std::size_t>(n));
  }
  hash_.add(into);
}

protocol::sha256 source_file::finish() {
  struct stat now {};
  if (::fstat(file_.get(), &now) != 0)
    fail(path_, errno);
  if (now.st_size != before_.st_size || now.st_mtim.tv_sec != before_.st_mtim.tv_sec ||
      now.st_mtim.tv_nsec != before_.st_mtim.tv_nsec)
    changed();
  return hash_.finish();
}

void source_file::changed() const {
  struct stat now {};
  const bool shrank = ::fstat(file_.get(), &now) == 0 && now.st_size < before_.st_size;
  throw copy_error(path_.string() + ": " + (shrank ? "shrank" : "changed") + " while it was copied",
                   reason::changed);
}

// --- The file that is received ---------------------------------------------------------------

target_file::target_file(std::filesystem::path path, std::uint64_t size)
    : path_(std::move(path)),
      temporary_(temporary_name(path_)),
      file_(make_temporary(path_, temporary_)) {
  const int done =
      size == 0 ? 0 : ::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size));
  if (done != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail(path_, error);
  }
}

target_file::~target_file() {
  if (!temporary_.empty())
    ::unlink(temporary_.c_str());
}

void target_file::write(std::span<const std::byte> bytes) {
  hash_.add(bytes);
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail(path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void target_file::store() {
  must_be_replaceable(path_);
  if (::fchmod(file_.get(), 0666 & ~creation_mask) != 0 || ::fsync(file_.get()) != 0 ||
      ::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(path_, errno);
  temporary_.clear();
}
