// Elementwise operations and column sums: bound by memory bandwidth, one thread per element or column.
#include <cmath>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f, kCubic = 0.044715f;

__global__ void add_kernel(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) y[i] += x[i];
}

__global__ void add_bias_kernel(const float* bias, float* y, std::int64_t count, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < count; i += grid_size()) y[i] += bias[i % n];
}

__global__ void bias_backward_kernel(ConstElements dy, float* dbias, std::int64_t rows, std::int64_t n) {
  for (std::int64_t c = grid_index(); c < n; c += grid_size()) {
    float sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += load(dy, r * n + c);
    dbias[c] += sum;
  }
}

__global__ void scale_kernel(float factor, float* y, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) y[i] *= factor;
}

__global__ void fill_kernel(float value, float* y, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) y[i] = value;
}

__global__ void convert_kernel(ConstElements x, Elements y, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) store(y, i, load(x, i));
}

__global__ void gelu_kernel(ConstElements x, Elements y, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) {
    const float v = load(x, i);
    store(y, i, 0.5f * v * (1.0f + tanhf(kRootTwoOverPi * (v + kCubic * v * v * v))));
  }
}

__global__ void gelu_backward_kernel(ConstElements dy, ConstElements x, Elements dx, std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) {
    const float v = load(x, i), t = tanhf(kRootTwoOverPi * (v + kCubic * v * v * v));
    const float slope = kRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
    store(dx, i, load(dy, i) * (0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * slope));
  }
}

}  // namespace

void add(CudaStream s, const float* x, float* y, std::int64_t n) {
  launch(add_kernel, blocks_for(n), s, x, y, n);
}

void add_bias(CudaStream s, const float* bias, float* y, std::int64_t rows, std::int64_t n) {
  launch(add_bias_kernel, blocks_for(rows * n), s, bias, y, rows * n, n);
}

void bias_backward(CudaStream s, ConstElements dy, float* dbias, std::int64_t rows, std::int64_t n) {
  launch(bias_backward_kernel, blocks_for(n), s, dy, dbias, rows, n);
}

void scale(CudaStream s, float factor, float* y, std::int64_t n) {
  launch(scale_kernel, blocks_for(n), s, factor, y, n);
}

void fill(CudaStream s, float value, float* y, std::int64_t n) {
  launch(fill_kernel, blocks_for(n), s, value, y, n);
}

void convert(CudaStream s, ConstElements x, Elements y, std::int64_t n) {
  launch(convert_kernel, blocks_for(n), s, x, y, n);
}

void gelu_forward(CudaStream s, ConstElements x, Elements y, std::int64_t n) {
  launch(gelu_kernel, blocks_for(n), s, x, y, n);
}

void gelu_backward(CudaStream s, ConstElements dy, ConstElements x, Elements dx, std::int64_t n) {
  launch(gelu_backward_kernel, blocks_for(n), s, dy, x, dx, n);
}

}  // namespace shardwright::kernels::cuda
