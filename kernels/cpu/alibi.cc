// Slopes of ALiBi, in float64 and rounded once.
#include <bit>
#include <cmath>

#include "kernels/ops.h"

namespace shardwright::kernels {

void alibi_slopes(Stream&, float* slopes, std::int64_t first_head, std::int64_t heads,
                  std::int64_t all_heads) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(all_heads)));
  for (std::int64_t i = 0; i < heads; ++i) {
    const std::int64_t h = first_head + i;
    const std::int64_t halves = h < power ? 2 * (h + 1) : 2 * (h - power) + 1;  // of a step among `power`
    slopes[i] =
        static_cast<float>(std::exp2(-4.0 * static_cast<double>(halves) / static_cast<double>(power)));
  }
}

}  // namespace shardwright::kernels
