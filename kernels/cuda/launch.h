// How the kernels of this folder are launched. nvcc compiles them for GPUs; the tests compile the same
// sources as C++ and run them on the host (tests/emulation/cuda_emulation.h).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include <cuda_emulation.h>
#endif

namespace shardwright::kernels::cuda {

/// Threads of a block in every kernel here; a multiple of a warp.
inline constexpr int kThreads = 256;

/// Gives `blocks` blocks of kThreads threads to the stream; none if that is zero. Throws std::runtime_error
/// if the launch is refused.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, cudaStream_t stream, Arguments... arguments) {
  if (blocks == 0) return;
#ifdef __CUDACC__
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments...);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("a CUDA kernel was not started: ") + cudaGetErrorString(error));
#else
  static_cast<void>(stream);
  emulation::run(static_cast<unsigned>(blocks), kThreads, [&] { kernel(arguments...); });
#endif
}

/// Blocks for one thread per element, at most so many that each thread takes several: kernels step by
/// grid_size().
inline std::int64_t blocks_for(std::int64_t n) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t blocks = (n + kThreads - 1) / kThreads;
  return blocks < kMost ? blocks : kMost;
}

/// This thread's number in the grid, and the grid's threads.
__device__ inline std::int64_t grid_index() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ inline std::int64_t grid_size() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

}  // namespace shardwright::kernels::cuda
