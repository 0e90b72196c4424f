// Layer norm and RMS norm over the last dimension: a block for each row; for the gradients of weight and bias
// a block for 32 columns, so that a warp reads neighbours.
#include <cmath>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr std::int64_t kColumns = 32;                 // of a block
constexpr std::int64_t kLanes = kThreads / kColumns;  // threads of a block that share a column

// Layer norm, or with mean = bias = null RMS norm.
__global__ void norm_kernel(const float* x, const float* weight, const float* bias, Elements y, float* mean,
                            float* rstd, std::int64_t rows, std::int64_t channels, float eps) {
  const float inverse = 1.0f / static_cast<float>(channels);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* in = x + row * channels;
    float m = 0;
    if (mean != nullptr) {
      float sum = 0;
      for (std::int64_t c = threadIdx.x; c < channels; c += kThreads) sum += in[c];
      m = block_sum(sum) * inverse;
    }
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < channels; c += kThreads) squares += (in[c] - m) * (in[c] - m);
    const float s = 1.0f / sqrtf(block_sum(squares) * inverse + eps);
    for (std::int64_t c = threadIdx.x; c < channels; c += kThreads)
      store(y, row * channels + c, (in[c] - m) * s * weight[c] + (bias != nullptr ? bias[c] : 0.0f));
    if (threadIdx.x == 0) {
      if (mean != nullptr) mean[row] = m;
      rstd[row] = s;
    }
  }
}

__global__ void norm_dx_kernel(const float* dy, const float* x, const float* weight, const float* mean,
                               const float* rstd, float* dx, std::int64_t rows, std::int64_t channels) {
  const float inverse = 1.0f / static_cast<float>(channels);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float *in = x + row * channels, *grad = dy + row * channels;
    float* out = dx + row * channels;
    const float m = mean != nullptr ? mean[row] : 0.0f, s = rstd[row];
    float sum = 0, projection = 0;
    for (std::int64_t c = threadIdx.x; c < channels; c += kThreads) {
      const float g = grad[c] * weight[c];
      sum += g;
      projection += g * ((in[c] - m) * s);
    }
    sum = mean != nullptr ? block_sum(sum) * inverse : 0.0f;
    projection = block_sum(projection) * inverse;
    for (std::int64_t c = threadIdx.x; c < channels; c += kThreads)
      out[c] += s * (grad[c] * weight[c] - sum - (in[c] - m) * s * projection);
  }
}

__global__ void norm_parameters_kernel(const float* dy, const float* x, const float* mean, const float* rstd,
                                       float* dweight, float* dbias, std::int64_t rows,
                                       std::int64_t channels) {
  __shared__ float weights[kLanes][kColumns], biases[kLanes][kColumns];
  const std::int64_t column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  for (std::int64_t first = blockIdx.x * kColumns; first < channels; first += gridDim.x * kColumns) {
    const std::int64_t c = first + column;
    float weight = 0, bias = 0;
    if (c < channels) {
      for (std::int64_t row = lane; row < rows; row += kLanes) {
        const float g = dy[row * channels + c];
        weight += g * ((x[row * channels + c] - (mean != nullptr ? mean[row] : 0.0f)) * rstd[row]);
        bias += g;
      }
    }
    weights[lane][column] = weight;
    biases[lane][column] = bias;
    __syncthreads();
    if (lane == 0 && c < channels) {
      for (std::int64_t other = 1; other < kLanes; ++other) {
        weight += weights[other][column];
        bias += biases[other][column];
      }
      dweight[c] += weight;
      if (dbias != nullptr) dbias[c] += bias;
    }
    __syncthreads();
  }
}

std::int64_t row_blocks(std::int64_t rows) {
  constexpr std::int64_t kMost = 1024;  // about what a large GPU runs at once
  return rows < kMost ? rows : kMost;
}

void backward(CudaStream s, const float* dy, const float* x, const float* weight, const float* mean,
              const float* rstd, float* dx, float* dweight, float* dbias, std::int64_t rows,
              std::int64_t channels) {
  launch(norm_dx_kernel, row_blocks(rows), s, dy, x, weight, mean, rstd, dx, rows, channels);
  launch(norm_parameters_kernel, (channels + kColumns - 1) / kColumns, s, dy, x, mean, rstd, dweight, dbias,
         rows, channels);
}

}  // namespace

void layernorm_forward(CudaStream s, const float* x, const float* weight, const float* bias, Elements y,
                       float* mean, float* rstd, std::int64_t rows, std::int64_t channels, float eps) {
  launch(norm_kernel, row_blocks(rows), s, x, weight, bias, y, mean, rstd, rows, channels, eps);
}

void layernorm_backward(CudaStream s, const float* dy, const float* x, const float* weight, const float* mean,
                        const float* rstd, float* dx, float* dweight, float* dbias, std::int64_t rows,
                        std::int64_t channels) {
  backward(s, dy, x, weight, mean, rstd, dx, dweight, dbias, rows, channels);
}

void rmsnorm_forward(CudaStream s, const float* x, const float* weight, Elements y, float* rstd,
                     std::int64_t rows, std::int64_t channels, float eps) {
  const float* const no_bias = nullptr;
  float* const no_mean = nullptr;
  launch(norm_kernel, row_blocks(rows), s, x, weight, no_bias, y, no_mean, rstd, rows, channels, eps);
}

void rmsnorm_backward(CudaStream s, const float* dy, const float* x, const float* weight, const float* rstd,
                      float* dx, float* dweight, std::int64_t rows, std::int64_t channels) {
  backward(s, dy, x, weight, nullptr, rstd, dx, dweight, nullptr, rows, channels);
}

}  // namespace shardwright::kernels::cuda
