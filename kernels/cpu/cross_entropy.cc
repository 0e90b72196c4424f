// Cross entropy in three passes over the logits held here; the caller reduces maxima and sums between them.
#include <algorithm>
#include <limits>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

SHARDWRIGHT_CLONES float row_maximum(const float* x, std::int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

SHARDWRIGHT_CLONES float exponentiate_row(float* x, float largest, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = cpu::exp_approximate(x[i] - largest);
    sum += x[i];
  }
  return sum;
}

SHARDWRIGHT_CLONES void scale_row(float* x, float factor, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

void logits_max(Stream&, const float* logits, float* row_max, std::int64_t rows, std::int64_t held) {
  cpu::for_ranges(rows, cpu::row_grain(held), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) row_max[r] = row_maximum(logits + r * held, held);
  });
}

void logits_sum(Stream&, float* logits, const std::int32_t* targets, const float* row_max, float* sums,
                float* target_logit, std::int64_t rows, std::int64_t held, std::int64_t first) {
  cpu::for_ranges(rows, cpu::row_grain(held), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = logits + r * held;
      const std::int64_t target = targets[r] - first;
      const bool here = targets[r] >= 0 && target >= 0 && target < held;
      target_logit[r] = here ? row[target] - row_max[r] : 0.0f;
      sums[r] = exponentiate_row(row, row_max[r], held);
    }
  });
}

void logits_backward(Stream&, float* logits, const std::int32_t* targets, const float* sums, float scale,
                     std::int64_t rows, std::int64_t held, std::int64_t first) {
  cpu::for_ranges(rows, cpu::row_grain(held), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = logits + r * held;
      if (targets[r] < 0) {
        std::fill(row, row + held, 0.0f);
        continue;
      }
      scale_row(row, scale / sums[r], held);
      const std::int64_t target = targets[r] - first;
      if (target >= 0 && target < held) row[target] -= scale;
    }
  });
}

}  // namespace shardwright::kernels
