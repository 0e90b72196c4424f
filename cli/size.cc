#include "cli/size.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace shardwright::cli {

std::optional<std::uint64_t> parse_size(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 16> kUnits = {{{"", 1},
                                                                                  {"B", 1},
                                                                                  {"KiB", 1024},
                                                                                  {"MiB", 1048576},
                                                                                  {"GiB", 1073741824},
                                                                                  {"TiB", 1099511627776},
                                                                                  {"PiB", 0x1p50},
                                                                                  {"EiB", 0x1p60},
                                                                                  {"kB", 1e3},
                                                                                  {"KB", 1e3},
                                                                                  {"MB", 1e6},
                                                                                  {"GB", 1e9},
                                                                                  {"TB", 1e12},
                                                                                  {"PB", 1e15},
                                                                                  {"EB", 1e18},
                                                                                  {"bytes", 1}}};
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (const auto& [unit, factor] : kUnits)
    if (text == unit && number * factor < 9e18)
      return static_cast<std::uint64_t>(std::llround(number * factor));
  return std::nullopt;
}

}  // namespace shardwright::cli
