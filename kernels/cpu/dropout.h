// Dropout's mask as factors, for operations that apply it themselves.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace shardwright::kernels::cpu {

/// factors[i] = 0 if the element with index first + i is dropped, else 1 / (1 - p). On the calling thread.
void dropout_factors(const Dropout& d, float* factors, std::int64_t n, std::uint64_t first);

}  // namespace shardwright::kernels::cpu
