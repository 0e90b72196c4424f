// Runs CUDA kernels compiled as C++ on the host, for tests: blocks one after another, each thread of a block
// a fiber that gives way at barriers and shuffles. Shared memory is static, as only one block runs at a time.
// Shuffles need all 32 lanes. A barrier or shuffle that some threads never reach throws std::logic_error.
// Not for more than one host thread.
#pragma once

#include <cstddef>
#include <functional>

#define __global__
#define __device__
#define __shared__ static

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace emulation {

struct Index {
  unsigned x = 0;
};

/// Runs body once for each thread of each block; threads are a multiple of 32.
void run(unsigned blocks, unsigned threads, const std::function<void()>& body);
/// All threads of the block come here before one goes on.
void barrier();
/// The value that lane `lane + offset` of the warp gave, or one's own past its end.
double shuffle_down(double value, int offset);

}  // namespace emulation

inline emulation::Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { emulation::barrier(); }
inline double __shfl_down_sync(unsigned, double value, int offset) {
  return emulation::shuffle_down(value, offset);
}
