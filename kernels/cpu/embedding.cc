// Token and position embeddings. Backward cuts columns or positions among threads, never the sum of one
// element, so its bits do not depend on the number of threads.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

SHARDWRIGHT_CLONES void add_row(const float* __restrict x, float* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void add_elements(ConstElements x, float* y, std::int64_t n) {
  if (x.type == ElementType::f32) return add_row(x.f32(), y, n);
  float block[cpu::kBlock];
  for (std::int64_t i = 0; i < n; i += cpu::kBlock) {
    const std::int64_t count = std::min(cpu::kBlock, n - i);
    cpu::widen(x + i, block, count);
    add_row(block, y + i, count);
  }
}

}  // namespace

void embedding_forward(Stream&, const std::int32_t* tokens, ConstElements table, float* y, std::int64_t rows,
                       std::int64_t channels, std::int64_t first, std::int64_t held) {
  const std::size_t bytes = static_cast<std::size_t>(channels) * sizeof(float);
  cpu::for_ranges(rows, cpu::row_grain(channels), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t row = tokens[r] - first;
      if (row >= 0 && row < held) {
        cpu::widen(table + row * channels, y + r * channels, channels);
      } else {
        std::memset(y + r * channels, 0, bytes);
      }
    }
  });
}

void embedding_backward(Stream&, const std::int32_t* tokens, const float* dy, float* dtable,
                        std::int64_t rows, std::int64_t channels, std::int64_t first, std::int64_t held) {
  cpu::for_ranges(channels, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t row = tokens[r] - first;
      if (row >= 0 && row < held) {
        add_row(dy + r * channels + begin, dtable + row * channels + begin, end - begin);
      }
    }
  });
}

void position_forward(Stream&, ConstElements table, float* y, std::int64_t first_row, std::int64_t rows,
                      std::int64_t positions, std::int64_t channels) {
  cpu::for_ranges(rows, cpu::row_grain(channels), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      add_elements(table + (first_row + r) % positions * channels, y + r * channels, channels);
  });
}

void position_backward(Stream&, const float* dy, float* dtable, std::int64_t first_row, std::int64_t rows,
                       std::int64_t positions, std::int64_t channels) {
  const std::int64_t end_row = first_row + rows;
  cpu::for_ranges(positions, cpu::row_grain(channels), [&](std::int64_t begin, std::int64_t end) {
    // `start` is the first row of a sequence; its positions begin .. end - 1 are added as far as dy has them.
    for (std::int64_t start = first_row / positions * positions; start < end_row; start += positions) {
      const std::int64_t lower = std::max(first_row, start + begin), upper = std::min(end_row, start + end);
      if (lower >= upper) continue;
      add_row(dy + (lower - first_row) * channels, dtable + (lower - start) * channels,
              (upper - lower) * channels);
    }
  });
}

}  // namespace shardwright::kernels
