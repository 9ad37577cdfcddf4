// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "protocol.hpp"

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <sys/stat.h>

struct evp_md_ctx_st;

/// The SHA-256 of a sequence of bytes.
class hasher {
public:
  hasher();
  ~hasher();
  void add(std::span<const std::byte> bytes);
  protocol::sha256 finish();

private:
  evp_md_ctx_st* context_;
};

std::string to_hex(const protocol::sha256& hash);

/// An open file descriptor, closed by the destructor.
class descriptor {
public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor();
  int get() const noexcept { return fd_; }

private:
  int fd_;
};

/// A regular file that is read once, from the beginning to the end. All functions throw
/// `copy_error`.
class source_file {
public:
  explicit source_file(const std::filesystem::path& path);

  std::uint64_t size() const noexcept { return static_cast<std::uint64_t>(before_.st_size); }
  /// The file's name at the receiver.
  std::string name() const;
  /// Fills `into` with the next bytes.
  void read(std::span<std::byte> into);
  /// The hash of all bytes read. Throws if the file has changed meanwhile.
  protocol::sha256 finish();

private:
  [[noreturn]] void changed() const;

  std::filesystem::path path_;
  descriptor file_;
  struct stat before_ {};
  hasher hash_;
};

/// A file that gets its name when it is complete. Until then it has another name in the same
/// folder; if it is never completed, it is removed. All functions throw `copy_error`.
class target_file {
public:
  /// Reserves `size` bytes if the file system can.
  target_file(std::filesystem::path path, std::uint64_t size);
  target_file(const target_file&) = delete;
  target_file& operator=(const target_file&) = delete;
  ~target_file();

  const std::filesystem::path& path() const noexcept { return path_; }
  void write(std::span<const std::byte> bytes);
  protocol::sha256 finish() { return hash_.finish(); }
  /// Flushes the file to the disk, and then gives it its name.
  void store();

private:
  std::filesystem::path path_;
  std::string temporary_; // empty when it has the final name
  descriptor file_;
  hasher hash_;
};
