#include "kernels/cpu/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

[[gnu::always_inline]] inline float from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

[[gnu::always_inline]] inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const std::uint32_t quiet = bits | 0x00400000u;
  return static_cast<std::uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

// After F. Giesen. fp32's exponent is 112 more than f16's; an f16 subnormal m * 2^-24 is (2^-14 + m * 2^-24)
// - 2^-14.
[[gnu::always_inline]] inline float from_f16(std::uint16_t x) {
  constexpr std::uint32_t kRebias = 112u << 23, kLeast = 113u << 23;  // kLeast: 2^-14
  const std::uint32_t magnitude = (x & 0x7fffu) << 13, exponent = magnitude & 0x0f800000u;
  const std::uint32_t normal = magnitude + kRebias + (exponent == 0x0f800000u ? kRebias : 0u);
  const float subnormal = std::bit_cast<float>(magnitude + kLeast) - std::bit_cast<float>(kLeast);
  const std::uint32_t bits = exponent == 0u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(x & 0x8000u) << 16));
}

[[gnu::always_inline]] inline std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the unit is 2^-24, which is that of fp32 numbers from 0.5: adding 0.5 rounds to it.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  std::uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? nan : result;
  return static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u));
}

SHARDWRIGHT_CLONES void widen_bf16(const std::uint16_t* __restrict x, float* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = from_bf16(x[i]);
}

SHARDWRIGHT_CLONES void narrow_bf16(const float* __restrict x, std::uint16_t* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

SHARDWRIGHT_CLONES void widen_f16(const std::uint16_t* __restrict x, float* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = from_f16(x[i]);
}

SHARDWRIGHT_CLONES void narrow_f16(const float* __restrict x, std::uint16_t* __restrict y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_f16(x[i]);
}

void copy_bytes(ConstElements x, Elements y, std::int64_t n) {
  if (n > 0) std::memcpy(y.data, x.data, static_cast<std::size_t>(n) * element_size(x.type));
}

}  // namespace

namespace cpu {

void widen(ConstElements x, float* y, std::int64_t n) {
  switch (x.type) {
    case ElementType::f32:
      return copy_bytes(x, y, n);
    case ElementType::bf16:
      return widen_bf16(static_cast<const std::uint16_t*>(x.data), y, n);
    case ElementType::f16:
      return widen_f16(static_cast<const std::uint16_t*>(x.data), y, n);
  }
}

void narrow(const float* x, Elements y, std::int64_t n) {
  switch (y.type) {
    case ElementType::f32:
      return copy_bytes(x, y, n);
    case ElementType::bf16:
      return narrow_bf16(x, static_cast<std::uint16_t*>(y.data), n);
    case ElementType::f16:
      return narrow_f16(x, static_cast<std::uint16_t*>(y.data), n);
  }
}

void widen_rows(ConstElements x, std::int64_t x_stride, float* y, std::int64_t y_stride, std::int64_t rows,
                std::int64_t n) {
  if (n == x_stride && n == y_stride) return widen(x, y, rows * n);
  for (std::int64_t r = 0; r < rows; ++r) widen(x + r * x_stride, y + r * y_stride, n);
}

void narrow_rows(const float* x, std::int64_t x_stride, Elements y, std::int64_t y_stride, std::int64_t rows,
                 std::int64_t n) {
  if (n == x_stride && n == y_stride) return narrow(x, y, rows * n);
  for (std::int64_t r = 0; r < rows; ++r) narrow(x + r * x_stride, y + r * y_stride, n);
}

}  // namespace cpu

void convert(Stream&, ConstElements x, Elements y, std::int64_t n) {
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    if (x.type == y.type) return copy_bytes(x + begin, y + begin, end - begin);
    if (y.type == ElementType::f32) return cpu::widen(x + begin, (y + begin).f32(), end - begin);
    if (x.type == ElementType::f32) return cpu::narrow((x + begin).f32(), y + begin, end - begin);
    float block[cpu::kBlock];
    for (std::int64_t i = begin; i < end; i += cpu::kBlock) {
      const std::int64_t count = std::min(cpu::kBlock, end - i);
      cpu::widen(x + i, block, count);
      cpu::narrow(block, y + i, count);
    }
  });
}

}  // namespace shardwright::kernels
