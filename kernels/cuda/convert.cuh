// Elements in device memory, read as fp32 and written from it: the integer arithmetic of
// kernels/cpu/convert.cc, so that each value has the CPU's bits.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/elements.h"

namespace shardwright::kernels::cuda {

__device__ inline float from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

__device__ inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const std::uint32_t quiet = bits | 0x00400000u;
  return static_cast<std::uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

// fp32's exponent is 112 more than f16's; an f16 subnormal m * 2^-24 is (2^-14 + m * 2^-24) - 2^-14.
__device__ inline float from_f16(std::uint16_t x) {
  constexpr std::uint32_t kRebias = 112u << 23, kLeast = 113u << 23;  // kLeast: 2^-14
  const std::uint32_t magnitude = (x & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  const std::uint32_t normal = magnitude + kRebias + (exponent == 0x0f800000u ? kRebias : 0u);
  const float subnormal = std::bit_cast<float>(magnitude + kLeast) - std::bit_cast<float>(kLeast);
  const std::uint32_t bits = exponent == 0u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(x & 0x8000u) << 16));
}

__device__ inline std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the unit is 2^-24, which is that of fp32 numbers from 0.5: adding 0.5 rounds to it.
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    result = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(result | sign);
}

/// Element i.
__device__ inline float load(const ConstElements& x, std::int64_t i) {
  if (x.type == ElementType::f32) return static_cast<const float*>(x.data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(x.data)[i];
  return x.type == ElementType::bf16 ? from_bf16(bits) : from_f16(bits);
}
__device__ inline void store(const Elements& y, std::int64_t i, float value) {
  if (y.type == ElementType::f32) {
    static_cast<float*>(y.data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(y.data)[i] = y.type == ElementType::bf16 ? to_bf16(value) : to_f16(value);
  }
}

}  // namespace shardwright::kernels::cuda
