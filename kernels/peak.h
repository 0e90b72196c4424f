// The ceiling that a training step is measured against.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace shardwright::kernels {

/// Best rate in GFLOP/s of an fp32 product of two n by n matrices with threads() threads, over as many
/// repetitions as fit in `seconds` (at least three, after one that warms up). Takes 12 n^2 bytes.
double peak_matmul_gflops(Stream& s, std::int64_t n = 2048, double seconds = 1.0);

}  // namespace shardwright::kernels
