#include "reshard/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace shardwright::reshard {
namespace {

using ckpt::DType;

template <typename To, typename From>
To cast_one(From x, DType from, DType to, CastLosses* losses = nullptr) {
  To y{};
  const CastLosses lost =
      cast(reinterpret_cast<const std::byte*>(&x), from, reinterpret_cast<std::byte*>(&y), to, 1);
  if (losses != nullptr) *losses += lost;
  return y;
}

double of_half(std::uint16_t bits) { return cast_one<double>(bits, DType::f16, DType::f64); }
std::uint16_t to_half(double x) { return cast_one<std::uint16_t>(x, DType::f64, DType::f16); }

TEST(Cast, EveryHalfIsItsValueAndComesBack) {
  EXPECT_EQ(of_half(0x3c00), 1);
  EXPECT_EQ(of_half(0xc000), -2);
  EXPECT_EQ(of_half(0x7bff), 65504);
  EXPECT_EQ(of_half(0x0001), 0x1p-24);
  EXPECT_EQ(of_half(0x0400), 0x1p-14);
  EXPECT_TRUE(std::signbit(of_half(0x8000)));
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double x = of_half(half);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(of_half(to_half(x))));
      continue;
    }
    ASSERT_EQ(to_half(x), half) << bits;
    // Through fp32 it is the same.
    const float f = cast_one<float>(half, DType::f16, DType::f32);
    ASSERT_EQ(cast_one<std::uint16_t>(f, DType::f32, DType::f16), half) << bits;
  }
}

// Between two neighbours the nearer one is taken, and from halfway the even one: for all of them.
TEST(Cast, HalvesRoundToNearestEven) {
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {
    const double low = of_half(static_cast<std::uint16_t>(bits));
    const double high = bits == 0x7bff ? 65536 : of_half(static_cast<std::uint16_t>(bits + 1));
    const double middle = (low + high) / 2;
    const unsigned even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(to_half(middle), even) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, 0)), bits);
    ASSERT_EQ(to_half(std::nextafter(middle, 1e9)), bits + 1);
    ASSERT_EQ(to_half(-middle), even | 0x8000);
  }
}

TEST(Cast, UpperHalvesOfFloatsRoundToNearestEven) {
  const auto to_bf16 = [](double x) { return cast_one<std::uint16_t>(x, DType::f64, DType::bf16); };
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const double low = std::bit_cast<float>(bits << 16);
    const double high = bits == 0x7f7f ? 0x1p128 : std::bit_cast<float>((bits + 1) << 16);
    const double middle = (low + high) / 2;
    ASSERT_EQ(to_bf16(low), bits);
    ASSERT_EQ(to_bf16(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(to_bf16(std::nextafter(middle, 0)), bits);
    ASSERT_EQ(to_bf16(std::nextafter(middle, 1e300)), bits + 1);
    ASSERT_EQ(cast_one<double>(static_cast<std::uint16_t>(bits), DType::bf16, DType::f64), low);
  }
  EXPECT_TRUE(std::isnan(cast_one<double>(to_bf16(std::nan("")), DType::bf16, DType::f64)));
  // A NaN whose payload stands in the lower half only.
  const float quiet_below = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(cast_one<float>(cast_one<std::uint16_t>(quiet_below, DType::f32, DType::bf16),
                                         DType::bf16, DType::f32)));
}

TEST(Cast, LossesAreCounted) {
  CastLosses losses;
  cast_one<std::uint16_t>(65519.0f, DType::f32, DType::f16, &losses);
  cast_one<std::uint16_t>(std::numeric_limits<float>::infinity(), DType::f32, DType::f16, &losses);
  EXPECT_EQ(losses.overflows, 0u);
  cast_one<std::uint16_t>(65520.0f, DType::f32, DType::f16, &losses);
  cast_one<float>(1e39, DType::f64, DType::f32, &losses);
  EXPECT_EQ(losses.overflows, 2u);
  cast_one<std::uint16_t>(0.0f, DType::f32, DType::f16, &losses);
  cast_one<std::uint16_t>(0x1.8p-25f, DType::f32, DType::f16, &losses);
  EXPECT_EQ(losses.underflows, 0u);
  cast_one<std::uint16_t>(-0x1p-25f, DType::f32, DType::f16, &losses);
  cast_one<float>(1e-60, DType::f64, DType::f32, &losses);
  EXPECT_EQ(losses.underflows, 2u);
}

TEST(Cast, WideningKeepsEveryBit) {
  std::mt19937 draw(5);
  std::vector<float> values(1001), back(values.size());
  for (float& v : values) v = std::bit_cast<float>(static_cast<std::uint32_t>(draw()));
  std::vector<double> wide(values.size());
  cast(reinterpret_cast<const std::byte*>(values.data()), DType::f32,
       reinterpret_cast<std::byte*>(wide.data()), DType::f64, values.size());
  cast(reinterpret_cast<const std::byte*>(wide.data()), DType::f64, reinterpret_cast<std::byte*>(back.data()),
       DType::f32, values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(back[i]));
    }
}

}  // namespace
}  // namespace shardwright::reshard
