// Values in another floating-point type, rounded once, to the nearest and from halfway to even (IEEE 754).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ckpt/dtype.h"

namespace shardwright::reshard {

/// What a cast could not keep.
struct CastLosses {
  std::uint64_t overflows = 0;   // finite values too large for the type: infinite after the cast
  std::uint64_t underflows = 0;  // values other than zero that are zero after it

  CastLosses& operator+=(const CastLosses& other) {
    overflows += other.overflows;
    underflows += other.underflows;
    return *this;
  }
};

/// True for f64, f32, bf16 and f16.
bool is_floating(ckpt::DType type);

/// Casts `count` values between floating-point types; NaN stays NaN. Thread-safe.
CastLosses cast(const std::byte* from, ckpt::DType from_type, std::byte* to, ckpt::DType to_type,
                std::size_t count);

}  // namespace shardwright::reshard
