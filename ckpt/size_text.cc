#include "ckpt/size_text.h"

#include <fmt/format.h>

#include <array>

namespace shardwright::ckpt {

std::string size_text(std::uint64_t bytes) {
  static constexpr std::array<const char*, 7> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 || value >= 100 ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                   : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace shardwright::ckpt
