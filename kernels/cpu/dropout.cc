// Dropout by masks that are a function of the element's index. What is dropped is multiplied by zero, so NaN
// stays to be seen. The mask is made of integers alone: the same on every machine.
#include "kernels/cpu/dropout.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"

namespace shardwright::kernels {
namespace {

constexpr std::int64_t kBlock = 4 * cpu::kPhiloxCounters;

[[gnu::always_inline]] inline void factor_block(const Dropout& d, std::uint64_t counter,
                                                std::uint32_t threshold, float kept,
                                                float* __restrict factors) {
  std::uint32_t word[4][cpu::kPhiloxCounters];
  cpu::philox_block(d.seed, d.purpose, counter, word);
#pragma omp simd
  for (int l = 0; l < cpu::kPhiloxCounters; ++l) {
    factors[4 * l] = word[0][l] < threshold ? 0.0f : kept;
    factors[4 * l + 1] = word[1][l] < threshold ? 0.0f : kept;
    factors[4 * l + 2] = word[2][l] < threshold ? 0.0f : kept;
    factors[4 * l + 3] = word[3][l] < threshold ? 0.0f : kept;
  }
}

// Blocks start at any multiple of four; the first and the last may reach outside of what is asked for.
SHARDWRIGHT_CLONES void fill_factors(const Dropout& d, std::uint32_t threshold, float kept, float* factors,
                                     std::int64_t n, std::uint64_t first) {
  std::uint64_t counter = first / 4;
  for (std::int64_t at = -static_cast<std::int64_t>(first % 4); at < n; at += kBlock) {
    if (at >= 0 && at + kBlock <= n) {
      factor_block(d, counter, threshold, kept, factors + at);
    } else {
      float block[kBlock];
      factor_block(d, counter, threshold, kept, block);
      const std::int64_t begin = std::max<std::int64_t>(at, 0), end = std::min(at + kBlock, n);
      std::copy(block + (begin - at), block + (end - at), factors + begin);
    }
    counter += cpu::kPhiloxCounters;
  }
}

// y may be x itself: each element is read before it is written.
SHARDWRIGHT_CLONES void multiply_range(const float* x, const float* __restrict factors, float* y,
                                       std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factors[i];
}

}  // namespace

void cpu::dropout_factors(const Dropout& d, float* factors, std::int64_t n, std::uint64_t first) {
  assert(d.p >= 0 && d.p < 1);
  // A word is below p * 2^32 exactly if it is below that number rounded up, which is at most 2^32 - 256.
  const auto threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(d.p) * 0x1p32));
  fill_factors(d, threshold, 1.0f / (1.0f - d.p), factors, n, first);
}

void dropout(Stream&, const Dropout& d, const float* x, float* y, std::int64_t n, std::uint64_t first) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kTile = 1024;  // stays in the first-level cache
    float factors[kTile];
    for (std::int64_t i = begin; i < end; i += kTile) {
      const std::int64_t count = std::min(kTile, end - i);
      cpu::dropout_factors(d, factors, count, first + static_cast<std::uint64_t>(i));
      multiply_range(x + i, factors, y + i, count);
    }
  });
}

}  // namespace shardwright::kernels
