// SwiGLU of a fused gate and up projection.
#include <algorithm>
#include <cassert>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

SHARDWRIGHT_CLONES void forward_rows(const float* __restrict gate_up, float* __restrict y, std::int64_t rows,
                                     std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* __restrict gate = gate_up + r * 2 * width;
    const float* __restrict up = gate + width;
    float* __restrict out = y + r * width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i)
      out[i] = gate[i] / (1.0f + cpu::exp_approximate(-gate[i])) * up[i];
  }
}

SHARDWRIGHT_CLONES void backward_rows(const float* __restrict dy, const float* __restrict gate_up,
                                      float* __restrict d_gate_up, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* __restrict grad = dy + r * width;
    const float* __restrict gate = gate_up + r * 2 * width;
    const float* __restrict up = gate + width;
    float* __restrict d_gate = d_gate_up + r * 2 * width;
    float* __restrict d_up = d_gate + width;
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) {
      const float g = gate[i], e = cpu::exp_approximate(-g), sigmoid = 1.0f / (1.0f + e);
      // 1 - sigmoid, without its cancellation above zero and without infinity times zero far below.
      const float rest = g >= 0.0f ? e * sigmoid : 1.0f - sigmoid;
      d_gate[i] = grad[i] * up[i] * (sigmoid + g * sigmoid * rest);
      d_up[i] = grad[i] * (g * sigmoid);
    }
  }
}

/// Calls body(row, column, count) for parts of at most a block of each row.
template <class Body>
void for_parts(std::int64_t begin, std::int64_t end, std::int64_t width, const Body& body) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t column = 0; column < width; column += cpu::kBlock)
      body(row, column, std::min(cpu::kBlock, width - column));
  }
}

}  // namespace

void swiglu_forward(Stream&, ConstElements gate_up, Elements y, std::int64_t rows, std::int64_t width) {
  assert(gate_up.type == y.type);
  cpu::for_ranges(rows, cpu::row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    if (y.type == ElementType::f32)
      return forward_rows((gate_up + begin * 2 * width).f32(), (y + begin * width).f32(), end - begin, width);
    float in[2 * cpu::kBlock], out[cpu::kBlock];
    for_parts(begin, end, width, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
      cpu::widen_rows(gate_up + (row * 2 * width + column), width, in, count, 2, count);
      forward_rows(in, out, 1, count);
      cpu::narrow(out, y + (row * width + column), count);
    });
  });
}

void swiglu_backward(Stream&, ConstElements dy, ConstElements gate_up, Elements d_gate_up, std::int64_t rows,
                     std::int64_t width) {
  assert(dy.type == gate_up.type && d_gate_up.type == gate_up.type);
  cpu::for_ranges(rows, cpu::row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    if (dy.type == ElementType::f32)
      return backward_rows((dy + begin * width).f32(), (gate_up + begin * 2 * width).f32(),
                           (d_gate_up + begin * 2 * width).f32(), end - begin, width);
    float gradient[cpu::kBlock], in[2 * cpu::kBlock], out[2 * cpu::kBlock];
    for_parts(begin, end, width, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
      const std::int64_t at = row * 2 * width + column;
      cpu::widen(dy + (row * width + column), gradient, count);
      cpu::widen_rows(gate_up + at, width, in, count, 2, count);
      backward_rows(gradient, in, out, 1, count);
      cpu::narrow_rows(out, count, d_gate_up + at, width, 2, count);
    });
  });
}

}  // namespace shardwright::kernels
