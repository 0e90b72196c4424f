// Dropout by the masks of kernels/cpu/dropout.cc: Philox4x32-10 of the element's index, integers alone.
#include <cmath>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace shardwright::kernels::cuda {
namespace {

// Word `word` of the counter (high, low).
__device__ std::uint32_t philox_word(std::uint64_t key, std::uint64_t high, std::uint64_t low,
                                     unsigned word) {
  std::uint32_t c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(high), c3 = static_cast<std::uint32_t>(high >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(c0) * 0xD2511F53u;
    const std::uint64_t p1 = static_cast<std::uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}

__global__ void dropout_kernel(std::uint64_t seed, std::uint64_t purpose, std::uint32_t threshold, float kept,
                               const float* x, Elements y, std::int64_t n, std::uint64_t first) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    const std::uint32_t word = philox_word(seed, purpose, index / 4, static_cast<unsigned>(index % 4));
    store(y, i, x[i] * (word < threshold ? 0.0f : kept));  // NaN times zero stays NaN
  }
}

}  // namespace

void dropout(CudaStream s, const Dropout& d, const float* x, Elements y, std::int64_t n,
             std::uint64_t first) {
  const auto threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(d.p) * 0x1p32));
  launch(dropout_kernel, blocks_for(n), s, d.seed, d.purpose, threshold, 1.0f / (1.0f - d.p), x, y, n, first);
}

}  // namespace shardwright::kernels::cuda
