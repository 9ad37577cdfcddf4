// SPDX-License-Identifier: BSL-1.0
#include "protocol.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace protocol {
namespace {

constexpr std::uint32_t magic = 0x50434452; // "RDCP"
constexpr std::uint8_t version = 2;

class writer {
public:
  explicit writer(std::byte* to) : begin_(to), at_(to) {}

  template <std::unsigned_integral T>
  void operator()(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      *at_++ = static_cast<std::byte>(value >> (8 * i));
  }
  void operator()(reason r) { (*this)(static_cast<std::uint8_t>(r)); }
  void operator()(const sha256& hash) { at_ = std::copy(hash.begin(), hash.end(), at_); }
  void operator()(const std::string& name) {
    (*this)(static_cast<std::uint8_t>(name.size()));
    std::memset(at_, 0, max_name);
    std::memcpy(at_, name.data(), name.size());
    at_ += max_name;
  }
  std::size_t size() const { return static_cast<std::size_t>(at_ - begin_); }

private:
  std::byte* begin_;
  std::byte* at_;
};

class reader {
public:
  explicit reader(std::span<const std::byte> from) : left_(from) {}

  template <std::unsigned_integral T>
  void operator()(T& value) {
    value = 0;
    const auto bytes = take(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value = static_cast<T>(value | std::to_integer<std::uint64_t>(bytes[i]) << (8 * i));
  }
  void operator()(reason& r) {
    std::uint8_t value = 0;
    (*this)(value);
    r = static_cast<reason>(value);
  }
  void operator()(sha256& hash) {
    const auto bytes = take(hash.size());
    std::copy(bytes.begin(), bytes.end(), hash.begin());
  }
  void operator()(std::string& name) {
    std::uint8_t size = 0;
    (*this)(size);
    const auto bytes = take(max_name);
    if (!good_ || size > bytes.size())
      return;
    const auto padding = bytes.subspan(size);
    good_ = std::all_of(padding.begin(), padding.end(), [](auto b) { return b == std::byte(); });
    name.assign(reinterpret_cast<const char*>(bytes.data()), size);
  }
  bool complete() const { return good_ && left_.empty(); }

private:
  std::span<const std::byte> take(std::size_t bytes) {
    if (left_.size() < bytes) {
      good_ = false;
      return {};
    }
    const auto result = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return result;
  }

  std::span<const std::byte> left_;
  bool good_ = true;
};

// The values of each message, for reading and for writing.
template <class Archive, class M>
void values(Archive& archive, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, offer>) {
    archive(m.size), archive(m.chunk), archive(m.window), archive(m.name);
  } else if constexpr (std::is_same_v<T, ready>) {
    archive(m.address), archive(m.rkey), archive(m.chunk), archive(m.window);
  } else if constexpr (std::is_same_v<T, filled>) {
    archive(m.slot), archive(m.bytes);
  } else if constexpr (std::is_same_v<T, emptied>) {
    archive(m.slot);
  } else if constexpr (std::is_same_v<T, failed>) {
    archive(m.why);
  } else if constexpr (!std::is_same_v<T, storing>) {
    archive(m.hash);
  }
}

bool fits(std::uint32_t chunk, std::uint32_t window) {
  return chunk >= min_chunk && chunk <= max_chunk && window >= 1 && window <= max_window;
}

// Whether the values are possible in some state of a copy. The receiver checks them against the
// actual state.
struct in_range {
  bool operator()(const offer& m) const {
    return m.size <= max_file_size && fits(m.chunk, m.window) && is_name(m.name);
  }
  bool operator()(const ready& m) const {
    return fits(m.chunk, m.window) && m.address != 0 &&
           m.address <= ~(std::uint64_t(m.chunk) * m.window);
  }
  bool operator()(const filled& m) const {
    return m.slot < max_window && m.bytes >= 1 && m.bytes <= max_chunk;
  }
  bool operator()(const emptied& m) const { return m.slot < max_window; }
  bool operator()(const failed& m) const { return m.why <= reason::last; }
  bool operator()(const finish&) const { return true; }
  bool operator()(const storing&) const { return true; }
  bool operator()(const stored&) const { return true; }
};

template <std::size_t... Types>
std::optional<message> decode_as(std::size_t type, std::span<const std::byte> body,
                                 std::index_sequence<Types...>) {
  std::optional<message> result;
  const auto attempt = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    std::variant_alternative_t<I, message> m;
    reader values_of(body);
    values(values_of, m);
    if (values_of.complete() && in_range()(m))
      result = std::move(m);
  };
  ((type == Types ? attempt(std::integral_constant<std::size_t, Types>()) : void()), ...);
  return result;
}

} // namespace

bool is_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || c == 127 || static_cast<unsigned char>(c) < ' ';
         });
}

const char* to_string(reason r) {
  switch (r) {
  case reason::protocol:
    return "did not understand a message";
  case reason::no_space:
    return "has no space left for the file";
  case reason::no_access:
    return "may not write the file there";
  case reason::not_a_file:
    return "has something of that name that is not a regular file";
  case reason::io:
    return "could not read or write the file";
  case reason::changed:
    return "found that the file changed while it was copied";
  case reason::different:
    return "found that the SHA-256 of the copy differs";
  case reason::interrupted:
    return "was interrupted";
  case reason::unknown:
    break;
  }
  return "failed";
}

std::size_t encode(const message& m, std::span<std::byte, max_message_size> to) {
  writer out(to.data());
  out(magic);
  out(version);
  out(static_cast<std::uint8_t>(m.index()));
  out(std::uint16_t(0));
  std::visit([&](const auto& values_of) { values(out, values_of); }, m);
  const std::size_t size = out.size();
  writer(to.data() + 6)(static_cast<std::uint16_t>(size));
  return size;
}

std::optional<message> decode(std::span<const std::byte> bytes) {
  constexpr std::size_t header_size = 8;
  if (bytes.size() < header_size)
    return {};
  std::uint32_t its_magic = 0;
  std::uint8_t its_version = 0, type = 0;
  std::uint16_t size = 0;
  reader header(bytes.first(header_size));
  header(its_magic), header(its_version), header(type), header(size);
  if (its_magic != magic || its_version != version || size != bytes.size())
    return {};
  return decode_as(type, bytes.subspan(header_size),
                   std::make_index_sequence<std::variant_size_v<message>>());
}

} // namespace protocol
