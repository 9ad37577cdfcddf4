// SPDX-License-Identifier: BSL-1.0
#ifndef SOFT_SETTINGS_WORDS_HPP
#define SOFT_SETTINGS_WORDS_HPP

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace soft::words {

struct named {
  std::string_view word;
  int value;
};

/// All words of each kind.
std::span<const named> all_places() noexcept; ///< with masks
std::span<const named> all_completion_statuses() noexcept;
std::span<const named> all_error_numbers() noexcept;
std::span<const named> all_event_types() noexcept;
std::span<const named> all_reject_reasons() noexcept;

/// The value of a word in settings, by the kind of word.
std::optional<std::uint32_t> places(std::string_view word) noexcept; ///< a mask
std::optional<int> completion_status(std::string_view word) noexcept;
std::optional<int> error_number(std::string_view word) noexcept;
std::optional<int> event_type(std::string_view word) noexcept;
std::optional<int> reject_reason(std::string_view word) noexcept;
/// Whether an event of this type concerns the port or the device, not an object of the program.
bool is_about_device(int event_type) noexcept;

} // namespace soft::words

#endif
