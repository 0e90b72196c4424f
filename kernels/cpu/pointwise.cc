// Elementwise operations and column sums. All are bound by memory bandwidth, GELU nearly so.
#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <vector>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
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

void bias_backward(Stream&, ConstElements dy, float* dbias, std::int64_t rows, std::int64_t n) {
  // Threads take columns, not rows: no partial sums, and the same bits for any number of threads.
  const std::int64_t grain = rows * n < cpu::kElementGrain ? n : 16;
  cpu::for_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
    if (dy.type == ElementType::f32)
      return column_sums((dy + begin).f32(), n, dbias + begin, rows, end - begin);
    // As many columns as four rows of fit in a block, summed as above.
    constexpr std::int64_t kRows = 4, kColumns = cpu::kBlock / kRows;
    float block[cpu::kBlock];
    for (std::int64_t c = begin; c < end; c += kColumns) {
      const std::int64_t columns = std::min(kColumns, end - c);
      for (std::int64_t r = 0; r < rows; r += kRows) {
        const std::int64_t count = std::min(kRows, rows - r);
        cpu::widen_rows(dy + (r * n + c), n, block, columns, count, columns);
        column_sums(block, columns, dbias + c, count, columns);
      }
    }
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

void gelu_forward(Stream&, ConstElements x, Elements y, std::int64_t n) {
  assert(x.type == y.type);
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    if (x.type == ElementType::f32) return gelu_range((x + begin).f32(), (y + begin).f32(), end - begin);
    float in[cpu::kBlock], out[cpu::kBlock];
    for (std::int64_t i = begin; i < end; i += cpu::kBlock) {
      const std::int64_t count = std::min(cpu::kBlock, end - i);
      cpu::widen(x + i, in, count);
      gelu_range(in, out, count);
      cpu::narrow(out, y + i, count);
    }
  });
}

void gelu_backward(Stream&, ConstElements dy, ConstElements x, Elements dx, std::int64_t n) {
  assert(dy.type == x.type && dx.type == x.type);
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    if (x.type == ElementType::f32)
      return gelu_backward_range((dy + begin).f32(), (x + begin).f32(), (dx + begin).f32(), end - begin);
    float gradient[cpu::kBlock], in[cpu::kBlock];
    for (std::int64_t i = begin; i < end; i += cpu::kBlock) {
      const std::int64_t count = std::min(cpu::kBlock, end - i);
      cpu::widen(dy + i, gradient, count);
      cpu::widen(x + i, in, count);
      gelu_backward_range(gradient, in, gradient, count);
      cpu::narrow(gradient, dx + i, count);
    }
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
