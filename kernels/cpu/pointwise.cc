// Elementwise operations and column sums. All are bound by memory bandwidth, GELU nearly so.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

SHARDWRIGHT_CLONES void add_range(const float* __restrict x, float* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

SHARDWRIGHT_CLONES void scale_range(float factor, float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] *= factor;
}

SHARDWRIGHT_CLONES void gelu_range(const float* __restrict x, float* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = cpu::gelu(x[i]);
}

// dx may be dy itself: each element is read before it is written.
SHARDWRIGHT_CLONES void gelu_backward_range(const float* dy, const float* x, float* dx, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = dy[i] * cpu::gelu_derivative(x[i]);
}

// sums[c] += column c of dy(rows, stride), for c < n. Four rows at a time, so that sums is read and written a
// quarter as often.
SHARDWRIGHT_CLONES void column_sums(const float* __restrict dy, std::int64_t stride, float* __restrict sums,
                                    std::int64_t rows, std::int64_t n) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* __restrict a = dy + r * stride;
    const float* __restrict b = a + stride;
    const float* __restrict c = b + stride;
    const float* __restrict d = c + stride;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) sums[i] += (a[i] + b[i]) + (c[i] + d[i]);
  }
  for (; r < rows; ++r) {
    const float* __restrict a = dy + r * stride;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) sums[i] += a[i];
  }
}

// Eight running sums make the order the same for any vector width; the square of a float is exact in float64,
// so fused multiply-add does not change it either.
SHARDWRIGHT_CLONES double squares_of_block(const float* x, std::int64_t n) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      const double v = x[i + l];
      lanes[l] += v * v;
    }
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

SHARDWRIGHT_CLONES bool finite_range(const float* x, std::int64_t n) {
  std::uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(x[i]) & 0x7f800000u;
    bad |= exponent == 0x7f800000u ? 1u : 0u;
  }
  return bad == 0;
}

}  // namespace

void add(Stream&, const float* x, float* y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    add_range(x + begin, y + begin, end - begin);
  });
}

void add_bias(Stream&, const float* bias, float* y, std::int64_t rows, std::int64_t n) {
  cpu::for_ranges(rows, cpu::row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) add_range(bias, y + r * n, n);
  });
}

void bias_backward(Stream&, const float* dy, float* dbias, std::int64_t rows, std::int64_t n) {
  // Threads take columns, not rows: no partial sums, and the same bits for any number of threads.
  if (rows * n < cpu::kElementGrain) {
    column_sums(dy, n, dbias, rows, n);
    return;
  }
  cpu::for_ranges(n, 16, [&](std::int64_t begin, std::int64_t end) {
    column_sums(dy + begin, n, dbias + begin, rows, end - begin);
  });
}

void scale(Stream&, float factor, float* y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain,
                  [&](std::int64_t begin, std::int64_t end) { scale_range(factor, y + begin, end - begin); });
}

void zero(Stream&, float* y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memset(y + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

void copy(Stream&, const float* x, float* y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(y + begin, x + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

void fill(Stream&, float value, float* y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain,
                  [&](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, value); });
}

void gelu_forward(Stream&, const float* x, float* y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    gelu_range(x + begin, y + begin, end - begin);
  });
}

void gelu_backward(Stream&, const float* dy, const float* x, float* dx, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    gelu_backward_range(dy + begin, x + begin, dx + begin, end - begin);
  });
}

double sum_of_squares(Stream&, const float* x, std::int64_t n) {
  constexpr std::int64_t kBlock = 4096;
  std::vector<double> blocks(static_cast<std::size_t>((n + kBlock - 1) / kBlock));
  cpu::for_ranges(static_cast<std::int64_t>(blocks.size()), cpu::kElementGrain / kBlock,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t b = begin; b < end; ++b) {
                      blocks[b] = squares_of_block(x + b * kBlock, std::min(kBlock, n - b * kBlock));
                    }
                  });
  double sum = 0;
  for (double block : blocks) sum += block;
  return sum;
}

bool all_finite(Stream&, const float* x, std::int64_t n) {
  std::atomic<bool> finite{true};
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    if (!finite_range(x + begin, end - begin)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

}  // namespace shardwright::kernels
