// RMS norm over the last dimension; a row stays in the first-level cache between its passes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

SHARDWRIGHT_CLONES void forward_rows(const float* __restrict x, const float* __restrict weight,
                                     float* __restrict y, float* __restrict rstd, std::int64_t rows,
                                     std::int64_t channels, float eps) {
  const float inverse = 1.0f / static_cast<float>(channels);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* __restrict in = x + r * channels;
    float* __restrict out = y + r * channels;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = 0; c < channels; ++c) squares += in[c] * in[c];
    const float s = 1.0f / std::sqrt(squares * inverse + eps);
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) out[c] = in[c] * s * weight[c];
    rstd[r] = s;
  }
}

SHARDWRIGHT_CLONES void backward_rows(const float* __restrict dy, const float* __restrict x,
                                      const float* __restrict weight, const float* __restrict rstd,
                                      float* __restrict dx, float* __restrict dweight, std::int64_t rows,
                                      std::int64_t channels) {
  const float inverse = 1.0f / static_cast<float>(channels);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* __restrict in = x + r * channels;
    const float* __restrict grad = dy + r * channels;
    float* __restrict out = dx + r * channels;
    const float s = rstd[r];
    float projection = 0;
#pragma omp simd reduction(+ : projection)
    for (std::int64_t c = 0; c < channels; ++c) projection += grad[c] * weight[c] * (in[c] * s);
    projection *= inverse;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      const float normalized = in[c] * s;
      out[c] += s * (grad[c] * weight[c] - normalized * projection);
      dweight[c] += grad[c] * normalized;
    }
  }
}

SHARDWRIGHT_CLONES void add_row(const float* __restrict x, float* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

}  // namespace

void rmsnorm_forward(Stream&, const float* x, const float* weight, Elements y, float* rstd, std::int64_t rows,
                     std::int64_t channels, float eps) {
  cpu::for_ranges(rows, cpu::row_grain(channels), [&](std::int64_t begin, std::int64_t end) {
    if (y.type == ElementType::f32)
      return forward_rows(x + begin * channels, weight, (y + begin * channels).f32(), rstd + begin,
                          end - begin, channels, eps);
    static thread_local std::vector<float> row;
    row.resize(static_cast<std::size_t>(channels));
    for (std::int64_t r = begin; r < end; ++r) {
      forward_rows(x + r * channels, weight, row.data(), rstd + r, 1, channels, eps);
      cpu::narrow(row.data(), y + r * channels, channels);
    }
  });
}

void rmsnorm_backward(Stream&, const float* dy, const float* x, const float* weight, const float* rstd,
                      float* dx, float* dweight, std::int64_t rows, std::int64_t channels) {
  // The weight's gradient is summed in blocks of rows whose cut does not depend on the number of threads.
  constexpr std::int64_t kMostBlocks = 64;
  const std::int64_t block = std::max(cpu::row_grain(channels), (rows + kMostBlocks - 1) / kMostBlocks);
  const std::int64_t blocks = (rows + block - 1) / block;
  static thread_local std::vector<float> scratch;
  scratch.assign(static_cast<std::size_t>(blocks * channels), 0.0f);
  float* const partials = scratch.data();
  cpu::for_ranges(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t row = b * block, count = std::min(block, rows - row);
      backward_rows(dy + row * channels, x + row * channels, weight, rstd + row, dx + row * channels,
                    partials + b * channels, count, channels);
    }
  });
  for (std::int64_t b = 0; b < blocks; ++b) add_row(partials + b * channels, dweight, channels);
}

}  // namespace shardwright::kernels
