// Every key of a configuration as data: where its value lives, what it may be, and what is not built yet.
// Loading, printing and --help are loops over this table.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "trainer/config.h"

namespace shardwright::trainer {

/// Where a key's value lives in a Config; the alternative is its type.
using ConfigPlace = std::variant<bool& (*)(Config&), int& (*)(Config&), std::int64_t& (*)(Config&),
                                 std::uint64_t& (*)(Config&), double& (*)(Config&), std::string& (*)(Config&),
                                 ckpt::Codec& (*)(Config&), std::vector<int>& (*)(Config&),
                                 std::vector<std::string>& (*)(Config&)>;

struct ConfigKey {
  std::string name;  // "section.key"
  std::string meaning;
  ConfigPlace place;
  bool required = false;
  // Numbers: least <= value <= most (with `open_low`: least < value; `open_high` likewise).
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool open_low = false;
  bool open_high = false;
  // Texts: the values there are (empty: any text), and those whose feature is not built yet.
  std::vector<std::string> choices = {};
  std::vector<std::string> later = {};
};

/// In the order in which they are printed; sections are contiguous.
const std::vector<ConfigKey>& config_schema();

/// The value as TOML text. Floats parse back to the same value.
std::string toml_value(const ConfigKey& key, const Config& config);

/// What a value of this key must be: "a whole number from 1", "one of gpt2", "true or false".
std::string expectation(const ConfigKey& key);

}  // namespace shardwright::trainer
