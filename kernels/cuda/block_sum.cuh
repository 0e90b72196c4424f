// Sums over the threads of a block in a fixed order: shuffles within a warp, then the warps in order; no
// atomic addition of numbers.
#pragma once

#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {

/// The sum over the block, for each of its threads; all of them call it.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2)
    value += static_cast<T>(__shfl_down_sync(0xffffffffu, value, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (const T warp : warps) sum += warp;
  __syncthreads();  // before the next sum writes there
  return sum;
}

}  // namespace shardwright::kernels::cuda
