// Elements as numbers and as text, for people who compare checkpoints.
#pragma once

#include <cstddef>
#include <string>

#include "ckpt/dtype.h"

namespace shardwright::ckpt {

/// The element at `bytes`; exact for every type (64-bit integers need the 64-bit mantissa of long double).
long double value_of(DType type, const std::byte* bytes);

/// The shortest decimal text that parses back to the element; "NaN", "Infinity", "-Infinity" where it is
/// none.
std::string value_text(DType type, const std::byte* bytes);

}  // namespace shardwright::ckpt
