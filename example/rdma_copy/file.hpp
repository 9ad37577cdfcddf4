// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "protocol.hpp"

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <sys/stat.h>

struct evp_md_ctx_st;

/// SHA-256 of what it is given.
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

/// An open file, closed at the end.
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

/// A regular file that is read once, from the beginning to the end. All throw `copy_error`.
class source_file {
public:
  explicit source_file(const std::filesystem::path& path);

  std::uint64_t size() const noexcept { return static_cast<std::uint64_t>(before_.st_size); }
  /// The name to give it elsewhere.
  std::string name() const;
  /// Reads the next bytes, all of them.
  void read(std::span<std::byte> into);
  /// The hash of all that was read, if the file is still the same.
  protocol::sha256 finish();

private:
  [[noreturn]] void changed() const;

  std::filesystem::path path_;
  descriptor file_;
  struct stat before_ {};
  hasher hash_;
};

/// A file that gets its name when it is complete; before that it has another in the same folder,
/// and if it never is, it goes. All throw `copy_error`.
class target_file {
public:
  /// Takes room for `size` bytes where the file system can.
  target_file(std::filesystem::path path, std::uint64_t size);
  target_file(const target_file&) = delete;
  target_file& operator=(const target_file&) = delete;
  ~target_file();

  const std::filesystem::path& path() const noexcept { return path_; }
  void write(std::span<const std::byte> bytes);
  protocol::sha256 finish() { return hash_.finish(); }
  /// Gives the file its name, when all of it is on the disk.
  void store();

private:
  std::filesystem::path path_;
  std::string temporary_; // empty when it has the final name
  descriptor file_;
  hasher hash_;
};
