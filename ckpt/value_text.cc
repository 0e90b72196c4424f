#include "ckpt/value_text.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace shardwright::ckpt {
namespace {

template <class T>
T as(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  float magnitude = 0;
  if (exponent == 31)
    magnitude =
        mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  else
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
std::string text(T value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return fmt::format("{}", value);
}

}  // namespace

long double value_of(DType type, const std::byte* bytes) {
  switch (type) {
    case DType::f32:
      return as<float>(bytes);
    case DType::bf16:
      return from_bf16(as<std::uint16_t>(bytes));
    case DType::f16:
      return from_f16(as<std::uint16_t>(bytes));
    case DType::f64:
      return as<double>(bytes);
    case DType::i8:
      return as<std::int8_t>(bytes);
    case DType::u8:
    case DType::boolean:
      return as<std::uint8_t>(bytes);
    case DType::i16:
      return as<std::int16_t>(bytes);
    case DType::u16:
      return as<std::uint16_t>(bytes);
    case DType::i32:
      return as<std::int32_t>(bytes);
    case DType::u32:
      return as<std::uint32_t>(bytes);
    case DType::i64:
      return static_cast<long double>(as<std::int64_t>(bytes));
    case DType::u64:
      return static_cast<long double>(as<std::uint64_t>(bytes));
  }
  return 0;
}

std::string value_text(DType type, const std::byte* bytes) {
  switch (type) {
    case DType::f32:
      return text(as<float>(bytes));
    case DType::bf16:
      return text(from_bf16(as<std::uint16_t>(bytes)));
    case DType::f16:
      return text(from_f16(as<std::uint16_t>(bytes)));
    case DType::f64:
      return text(as<double>(bytes));
    case DType::boolean:
      return as<std::uint8_t>(bytes) != 0 ? "true" : "false";
    case DType::i64:
      return fmt::format("{}", as<std::int64_t>(bytes));
    case DType::u64:
      return fmt::format("{}", as<std::uint64_t>(bytes));
    default:
      return fmt::format("{}", static_cast<std::int64_t>(value_of(type, bytes)));
  }
}

}  // namespace shardwright::ckpt
