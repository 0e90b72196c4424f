// Cutting an operation's work among threads().
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device.h"

namespace shardwright::kernels::cpu {

/// Elements below which a thread of its own does not pay (64 KiB of fp32).
inline constexpr std::int64_t kElementGrain = 16384;

/// Rows of `channels` elements that make up one grain.
inline std::int64_t row_grain(std::int64_t channels) {
  return std::max<std::int64_t>(1, kElementGrain / std::max<std::int64_t>(1, channels));
}

/// Calls body(begin, end) on one contiguous range of [0, n) per thread, cut at multiples of `grain`, and
/// returns when all have. body must not throw. The cut depends on n, grain and the number of threads alone.
template <class Body>
void for_ranges(std::int64_t n, std::int64_t grain, const Body& body) {
  if (n <= 0) return;
  const std::int64_t grains = (n + grain - 1) / grain;
  const int team = static_cast<int>(std::min<std::int64_t>(threads(), grains));
  if (team <= 1) {
    body(std::int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const std::int64_t pieces = omp_get_num_threads(), piece = omp_get_thread_num();
    const std::int64_t begin = grains * piece / pieces * grain;
    const std::int64_t end = std::min(n, grains * (piece + 1) / pieces * grain);
    if (begin < end) body(begin, end);
  }
}

}  // namespace shardwright::kernels::cpu
