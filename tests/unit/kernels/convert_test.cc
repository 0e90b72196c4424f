// Conversions over all 65,536 values and all ties, against the formats' definitions.
#include <bit>
#include <limits>

#include "tests/unit/kernels/sixteen_bits.h"

namespace shardwright::kernels {
namespace {

struct Format {
  ElementType type;
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format kFormats[] = {{ElementType::bf16, 8, 7}, {ElementType::f16, 5, 10}};

// What 16 bits mean, by the definition; infinity and NaN aside.
double meaning(const Format& f, std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const int fraction = static_cast<int>(bits) & ((1 << f.fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - f.bias() - f.fraction_bits)
                    : std::ldexp((1 << f.fraction_bits) + fraction, exponent - f.bias() - f.fraction_bits);
  return bits & 0x8000u ? -magnitude : magnitude;
}

std::uint32_t infinity(const Format& f) { return ((1u << f.exponent_bits) - 1) << f.fraction_bits; }

std::vector<std::uint16_t> all_values() {
  std::vector<std::uint16_t> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  return values;
}

Floats widened(ElementType type, const std::vector<std::uint16_t>& bits) {
  Stream s(DeviceKind::cpu);
  Floats values(bits.size());
  convert(s, ConstElements(bits.data(), type), values.data(), std::ssize(values));
  return values;
}

std::vector<std::uint16_t> narrowed(ElementType type, const Floats& values) {
  Stream s(DeviceKind::cpu);
  std::vector<std::uint16_t> bits(values.size());
  convert(s, values.data(), Elements(bits.data(), type), std::ssize(values));
  return bits;
}

TEST(Convert, EachValueWidensToItsMeaningAndComesBack) {
  for (const Format& f : kFormats) {
    const std::vector<std::uint16_t> all = all_values();
    const Floats wide = widened(f.type, all);
    const std::vector<std::uint16_t> back = narrowed(f.type, wide);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const std::uint32_t magnitude = bits & 0x7fffu;
      if (magnitude > infinity(f)) {
        ASSERT_TRUE(std::isnan(wide[bits])) << bits;
        ASSERT_EQ(back[bits], bits | (1u << (f.fraction_bits - 1))) << bits;  // the same NaN, quiet
        continue;
      }
      if (magnitude == infinity(f)) {
        ASSERT_TRUE(std::isinf(wide[bits])) << bits;
      } else {
        ASSERT_EQ(static_cast<double>(wide[bits]), meaning(f, bits)) << bits;
      }
      ASSERT_EQ(std::signbit(wide[bits]), (bits & 0x8000u) != 0) << bits;
      ASSERT_EQ(back[bits], bits);
    }
  }
}

// Between each value and the next larger one: the middle goes to the even one, and what lies next to the
// middle to the nearer one.
TEST(Convert, RoundsToNearestAndTiesToEven) {
  for (const Format& f : kFormats) {
    Floats values;
    std::vector<std::uint16_t> want;
    for (std::uint32_t bits = 0; bits < infinity(f); ++bits) {
      const double low = meaning(f, bits);
      // Past the largest number lies what the format would have next, which is infinity.
      const double high = bits + 1 == infinity(f) ? std::ldexp(1, f.bias() + 1) : meaning(f, bits + 1);
      const auto middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << bits;
      const std::uint32_t even = bits & 1u ? bits + 1 : bits;
      const auto add = [&](float value, std::uint32_t to) {
        for (const bool negative : {false, true}) {
          values.push_back(negative ? -value : value);
          want.push_back(static_cast<std::uint16_t>(negative ? to | 0x8000u : to));
        }
      };
      add(middle, even);
      add(std::nextafter(middle, 0.0f), bits);
      add(std::nextafter(middle, std::numeric_limits<float>::infinity()), bits + 1);
    }
    const std::vector<std::uint16_t> got = narrowed(f.type, values);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << values[i];
  }
}

TEST(Convert, WhatIsTooLargeOrTooSmallOrNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Format& f : kFormats) {
    const auto inf = static_cast<std::uint16_t>(infinity(f));
    const Floats values{kInfinity, -kInfinity, std::numeric_limits<float>::max(), 0.0f, -0.0f};
    EXPECT_EQ(narrowed(f.type, values),
              (std::vector<std::uint16_t>{inf, static_cast<std::uint16_t>(inf | 0x8000u), inf, 0, 0x8000u}));
    // NaNs of fp32 whose payload lies below what the format keeps stay NaNs.
    const Floats nans{std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(0x7f800001u),
                      std::bit_cast<float>(0xffffffffu)};
    for (const float value : widened(f.type, narrowed(f.type, nans))) EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_EQ(narrowed(ElementType::f16, {std::numeric_limits<float>::denorm_min()})[0], 0);
}

TEST(Convert, BetweenTheSixteenBitTypesAndAnyCount) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t n : {0, 1, 7, 1023, 1025, 40001}) {
    const Floats values = random_floats(n, 1);
    const SixteenBits half(ElementType::f16, values);
    SixteenBits to(ElementType::bf16, Floats(values.size()));
    convert(s, half, to, n);
    EXPECT_EQ(to, SixteenBits(ElementType::bf16, half.floats())) << n;
    SixteenBits copied(ElementType::f16, Floats(values.size()));
    convert(s, half, copied, n);
    EXPECT_EQ(copied, half);
  }
}

}  // namespace
}  // namespace shardwright::kernels
