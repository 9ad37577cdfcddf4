// SPDX-License-Identifier: BSL-1.0
// The table of words in README.md.
#include "settings/words.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <span>
#include <string>

using namespace soft;

namespace {

using set_of_words = std::set<std::string>;

// The words, set in code, of all rows whose first column begins so.
set_of_words words_of_page(const std::string& kind) {
  std::ifstream page(SOFT_PAGE);
  REQUIRE(page);
  set_of_words found;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| " + kind))
      continue;
    std::size_t first = line.find('|', 1);
    while ((first = line.find('`', first)) != std::string::npos) {
      const std::size_t last = line.find('`', ++first);
      REQUIRE(last != std::string::npos);
      INFO(line);
      CHECK(found.insert(line.substr(first, last - first)).second); // once
      first = last + 1;
    }
  }
  return found;
}

set_of_words words_of(std::span<const words::named> all) {
  set_of_words result;
  for (const words::named& n : all)
    result.emplace(n.word);
  return result;
}

} // namespace

TEST_CASE("The page names all words of settings, and no others") {
  CHECK(words_of_page("PLACE") == words_of(words::all_places()));
  CHECK(words_of_page("Status") == words_of(words::all_completion_statuses()));
  CHECK(words_of_page("Error") == words_of(words::all_error_numbers()));
  CHECK(words_of_page("Reason") == words_of(words::all_reject_reasons()));
  CHECK(words_of_page("EVENT") == words_of(words::all_event_types()));
}
