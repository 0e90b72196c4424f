// Element types that a checkpoint can hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwright::ckpt {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i8, u8, i16, u16, i32, u32, i64, u64, boolean };
inline constexpr std::size_t kDTypes = 13;

/// Bytes of one element: 1, 2, 4 or 8.
std::size_t size_of(DType type);
/// The name in files and JSON: "f32", "bf16", ..., "bool".
std::string_view name(DType type);
/// Inverse of name(); throws Error(damaged) for any other text.
DType parse_dtype(std::string_view text);

}  // namespace shardwright::ckpt
