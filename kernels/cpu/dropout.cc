// Dropout by masks that are a function of the element's index. What is dropped is multiplied by zero, so NaN
// stays to be seen. The mask is made of integers alone: the same on every machine.
#include "kernels/cpu/dropout.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"

namespace shardwright::kernels {
namespace {

SHARDWRIGHT_CLONES void words_to_factors(const std::uint32_t* __restrict words, std::uint32_t threshold,
                                         float kept, float* __restrict factors, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) factors[i] = words[i] < threshold ? 0.0f : kept;
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
  const float kept = 1.0f / (1.0f - d.p);
  constexpr std::int64_t kTile = 256, kGroupWords = 4 * kPhiloxGroup;
  std::uint32_t words[kTile];
  std::uint64_t counter = first / 4;
  auto skipped = static_cast<std::int64_t>(first % 4);  // words of the first counter that come before
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t count = std::min(n - done, kTile - skipped);
    const std::int64_t groups = (skipped + count + kGroupWords - 1) / kGroupWords;
    philox_words(d.seed, d.purpose, counter, words, groups * kPhiloxGroup);
    words_to_factors(words + skipped, threshold, kept, factors + done, count);
    done += count;
    counter += kTile / 4;
    skipped = 0;
  }
}

void dropout(Stream&, const Dropout& d, const float* x, Elements y, std::int64_t n, std::uint64_t first) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    float factors[cpu::kBlock], block[cpu::kBlock];
    for (std::int64_t i = begin; i < end; i += cpu::kBlock) {
      const std::int64_t count = std::min(cpu::kBlock, end - i);
      cpu::dropout_factors(d, factors, count, first + static_cast<std::uint64_t>(i));
      if (y.type == ElementType::f32) {
        multiply_range(x + i, factors, (y + i).f32(), count);
      } else {
        multiply_range(x + i, factors, block, count);
        cpu::narrow(block, y + i, count);
      }
    }
  });
}

}  // namespace shardwright::kernels
