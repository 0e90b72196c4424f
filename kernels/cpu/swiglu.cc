// SwiGLU of a fused gate and up projection.
#include "kernels/cpu/clones.h"
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

}  // namespace

void swiglu_forward(Stream&, const float* gate_up, float* y, std::int64_t rows, std::int64_t width) {
  cpu::for_ranges(rows, cpu::row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    forward_rows(gate_up + begin * 2 * width, y + begin * width, end - begin, width);
  });
}

void swiglu_backward(Stream&, const float* dy, const float* gate_up, float* d_gate_up, std::int64_t rows,
                     std::int64_t width) {
  cpu::for_ranges(rows, cpu::row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    backward_rows(dy + begin * width, gate_up + begin * 2 * width, d_gate_up + begin * 2 * width, end - begin,
                  width);
  });
}

}  // namespace shardwright::kernels
