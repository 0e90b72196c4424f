// Conversion between element types inside other operations, on the calling thread alone. Narrowing rounds to
// nearest even, past the largest number to infinity; infinity stays and NaN stays NaN, quiet, with the upper
// bits of its payload. Widening is exact.
#pragma once

#include <cstdint>

#include "kernels/elements.h"

namespace shardwright::kernels::cpu {

/// Elements of a block that is converted, computed on and converted back while it stays in the first-level
/// cache.
inline constexpr std::int64_t kBlock = 1024;

/// y(n) = x(n)
void widen(ConstElements x, float* y, std::int64_t n);
void narrow(const float* x, Elements y, std::int64_t n);

/// y(rows, n) = x(rows, n), each with its row stride.
void widen_rows(ConstElements x, std::int64_t x_stride, float* y, std::int64_t y_stride, std::int64_t rows,
                std::int64_t n);
void narrow_rows(const float* x, std::int64_t x_stride, Elements y, std::int64_t y_stride, std::int64_t rows,
                 std::int64_t n);

}  // namespace shardwright::kernels::cpu
