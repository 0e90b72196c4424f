#include "reshard/cast.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardwright::reshard {
namespace {

using ckpt::DType;

// bf16 is the upper half of an fp32.
struct BFloat16 {
  std::uint16_t bits;
};
// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
struct Float16 {
  std::uint16_t bits;
};

double value(double x) { return x; }
double value(float x) { return x; }
double value(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
double value(Float16 x) {
  const int exponent = x.bits >> 10 & 0x1f;
  const int fraction = x.bits & 0x3ff;
  double size = 0;
  if (exponent == 0x1f) {
    size = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 0x400, exponent - 25);
  }
  return (x.bits & 0x8000) != 0 ? -size : size;
}

/// Rounded to odd: a later rounding to 22 bits or fewer gives what one rounding of `x` would.
float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  const double back = nearest;
  if (std::isnan(x) || back == x || (std::bit_cast<std::uint32_t>(nearest) & 1) != 0) return nearest;
  return std::nextafter(
      nearest, back < x ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity());
}

void store(double x, double& to) { to = x; }
void store(double x, float& to) { to = static_cast<float>(x); }
void store(double x, BFloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(rounded_to_odd(x));
  if (std::isnan(x)) {
    to.bits = static_cast<std::uint16_t>(bits >> 16 | 0x40);
  } else {
    to.bits = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
void store(double x, Float16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(rounded_to_odd(x));
  const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  std::uint32_t half = 0;
  if (size > 0x7f800000) {
    half = 0x7e00;  // NaN
  } else if (size >= 0x477ff000) {
    half = 0x7c00;  // from 65520 on all is infinite
  } else if (size >= 0x38800000) {
    half = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
  } else {
    // Subnormal: multiples of 2^-24, and a float just below 2^-14 has room for the bits behind.
    half = static_cast<std::uint32_t>(std::lrint(std::ldexp(std::bit_cast<float>(size), 24)));
  }
  to.bits = static_cast<std::uint16_t>(sign | half);
}

template <typename From, typename To>
CastLosses cast_all(const std::byte* from, std::byte* to, std::size_t count) {
  CastLosses losses;
  for (std::size_t i = 0; i < count; ++i) {
    From source;
    std::memcpy(&source, from + i * sizeof(From), sizeof(From));
    const double x = value(source);
    To target;
    store(x, target);
    if constexpr (sizeof(To) < sizeof(From) || sizeof(To) == 2) {
      const double y = value(target);
      losses.overflows += static_cast<std::uint64_t>(std::isfinite(x) && std::isinf(y));
      losses.underflows += static_cast<std::uint64_t>(x != 0 && y == 0);
    }
    std::memcpy(to + i * sizeof(To), &target, sizeof(To));
  }
  return losses;
}

template <typename From>
CastLosses cast_from(const std::byte* from, std::byte* to, DType to_type, std::size_t count) {
  switch (to_type) {
    case DType::f64:
      return cast_all<From, double>(from, to, count);
    case DType::f32:
      return cast_all<From, float>(from, to, count);
    case DType::bf16:
      return cast_all<From, BFloat16>(from, to, count);
    case DType::f16:
      return cast_all<From, Float16>(from, to, count);
    default:
      assert(!"a floating-point type");
      return {};
  }
}

}  // namespace

bool is_floating(DType type) {
  return type == DType::f64 || type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

CastLosses cast(const std::byte* from, DType from_type, std::byte* to, DType to_type, std::size_t count) {
  switch (from_type) {
    case DType::f64:
      return cast_from<double>(from, to, to_type, count);
    case DType::f32:
      return cast_from<float>(from, to, to_type, count);
    case DType::bf16:
      return cast_from<BFloat16>(from, to, to_type, count);
    case DType::f16:
      return cast_from<Float16>(from, to, to_type, count);
    default:
      assert(!"a floating-point type");
      return {};
  }
}

}  // namespace shardwright::reshard
