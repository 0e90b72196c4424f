// Reductions in a fixed order: a fixed number of blocks, each thread its stride, then the threads as
// block_sum adds them.
#include <bit>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace shardwright::kernels::cuda {
namespace {

static_assert(kReductionBlocks <= kThreads);

__global__ void squares_kernel(const float* x, std::int64_t n, double* blocks) {
  double sum = 0;
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) {
    const double v = x[i];
    sum += v * v;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) blocks[blockIdx.x] = sum;
}

__global__ void add_blocks_kernel(const double* blocks, double* sum) {
  const double all = block_sum(threadIdx.x < kReductionBlocks ? blocks[threadIdx.x] : 0.0);
  if (threadIdx.x == 0) *sum = all;
}

// Threads may write at once, all the same value.
__global__ void all_finite_kernel(const float* x, std::int64_t n, std::int32_t* finite) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) {
    if ((std::bit_cast<std::uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u) *finite = 0;
  }
}

}  // namespace

void sum_of_squares(CudaStream s, const float* x, std::int64_t n, double* scratch, double* sum) {
  launch(squares_kernel, kReductionBlocks, s, x, n, scratch);
  launch(add_blocks_kernel, 1, s, scratch, sum);
}

void all_finite(CudaStream s, const float* x, std::int64_t n, std::int32_t* finite) {
  launch(all_finite_kernel, blocks_for(n), s, x, n, finite);
}

}  // namespace shardwright::kernels::cuda
