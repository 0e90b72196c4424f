// Rotary positions. The cosines and sines of all positions are made in float64 once and kept, so a call only
// multiplies.
#include <cassert>
#include <cmath>
#include <vector>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

// Row t: D/2 cosines of position t, then D/2 sines.
class Angles {
 public:
  // Rows 0 .. positions - 1, at least, for this head size and theta.
  const float* rows(std::int64_t positions, std::int64_t head_size, float theta) {
    if (head_size != head_size_ || theta != theta_) {
      table_.clear();
      head_size_ = head_size;
      theta_ = theta;
    }
    const std::int64_t half = head_size / 2;
    const std::int64_t made = std::ssize(table_) / head_size;
    if (made >= positions) return table_.data();
    table_.resize(static_cast<std::size_t>(positions * head_size));
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(static_cast<double>(theta),
                                        -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
      for (std::int64_t t = made; t < positions; ++t) {
        const double angle = static_cast<double>(t) * frequency;
        float* const row = table_.data() + t * head_size;
        row[i] = static_cast<float>(std::cos(angle));
        row[half + i] = static_cast<float>(std::sin(angle));
      }
    }
    return table_.data();
  }

 private:
  std::int64_t head_size_ = 0;
  float theta_ = 0;
  std::vector<float> table_;
};

// All heads of x, whose rows are the rows first .. first + rows - 1 of the sequences; `turn` is 1, or -1 to
// turn back.
SHARDWRIGHT_CLONES void rotate_rows(float* x, std::int64_t stride, const float* angles, std::int64_t first,
                                    std::int64_t rows, std::int64_t positions, std::int64_t heads,
                                    std::int64_t half, float turn) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* __restrict cosines = angles + (first + r) % positions * 2 * half;
    const float* __restrict sines = cosines + half;
    for (std::int64_t h = 0; h < heads; ++h) {
      float* __restrict low = x + r * stride + h * 2 * half;
      float* __restrict high = low + half;
#pragma omp simd
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = low[i], b = high[i], sine = turn * sines[i];
        low[i] = a * cosines[i] - b * sine;
        high[i] = b * cosines[i] + a * sine;
      }
    }
  }
}

}  // namespace

void rope(Stream&, Elements x, std::int64_t stride, std::int64_t rows, std::int64_t positions,
          std::int64_t heads, std::int64_t head_size, float theta, bool inverse) {
  assert(head_size % 2 == 0);
  if (rows <= 0 || heads <= 0 || head_size <= 0) return;
  // One per calling thread: the threads of the loop below only read it.
  static thread_local Angles kept;
  const float* const angles = kept.rows(positions, head_size, theta);
  cpu::for_ranges(rows, cpu::row_grain(heads * head_size), [&](std::int64_t begin, std::int64_t end) {
    const float turn = inverse ? -1.0f : 1.0f;
    if (x.type == ElementType::f32)
      return rotate_rows((x + begin * stride).f32(), stride, angles, begin, end - begin, positions, heads,
                         head_size / 2, turn);
    const std::int64_t width = heads * head_size;
    static thread_local std::vector<float> row;
    row.resize(static_cast<std::size_t>(width));
    for (std::int64_t r = begin; r < end; ++r) {
      cpu::widen(x + r * stride, row.data(), width);
      rotate_rows(row.data(), width, angles, r, 1, positions, heads, head_size / 2, turn);
      cpu::narrow(row.data(), x + r * stride, width);
    }
  });
}

}  // namespace shardwright::kernels
