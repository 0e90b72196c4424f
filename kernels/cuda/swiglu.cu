// SwiGLU, one thread per element of the output.
#include <cmath>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace shardwright::kernels::cuda {
namespace {

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__global__ void swiglu_kernel(ConstElements gate_up, Elements y, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = grid_index(); i < count; i += grid_size()) {
    const std::int64_t at = i / width * 2 * width + i % width;
    const float gate = load(gate_up, at);
    store(y, i, gate * sigmoid(gate) * load(gate_up, at + width));
  }
}

__global__ void swiglu_backward_kernel(ConstElements dy, ConstElements gate_up, Elements d_gate_up,
                                       std::int64_t count, std::int64_t width) {
  for (std::int64_t i = grid_index(); i < count; i += grid_size()) {
    const std::int64_t at = i / width * 2 * width + i % width;
    const float gate = load(gate_up, at), up = load(gate_up, at + width), d = load(dy, i);
    const float s = sigmoid(gate);
    store(d_gate_up, at, d * up * (s * (1.0f + gate * (1.0f - s))));
    store(d_gate_up, at + width, d * gate * s);
  }
}

}  // namespace

void swiglu_forward(CudaStream s, ConstElements gate_up, Elements y, std::int64_t rows, std::int64_t width) {
  launch(swiglu_kernel, blocks_for(rows * width), s, gate_up, y, rows * width, width);
}

void swiglu_backward(CudaStream s, ConstElements dy, ConstElements gate_up, Elements d_gate_up,
                     std::int64_t rows, std::int64_t width) {
  launch(swiglu_backward_kernel, blocks_for(rows * width), s, dy, gate_up, d_gate_up, rows * width, width);
}

}  // namespace shardwright::kernels::cuda
