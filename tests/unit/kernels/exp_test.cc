#include "kernels/cpu/exp.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace shardwright::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Exp, WholeRangeAgainstFloat64) {
  double worst = 0;
  // Each 997th float of either sign, from zero to past both ends.
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(200.0f); bits += 997) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double want = std::exp(static_cast<double>(x));
      const double got = static_cast<double>(exp_approximate(x));
      if (want > static_cast<double>(std::numeric_limits<float>::max())) {
        ASSERT_EQ(got, static_cast<double>(kInfinity)) << x;
      } else if (want < static_cast<double>(std::numeric_limits<float>::min())) {
        ASSERT_NEAR(got, want, 1.5e-45) << x;
      } else {
        worst = std::max(worst, std::abs(got - want) / want);
      }
    }
  }
  EXPECT_LT(worst, 1.5e-7);
}

TEST(Exp, Ends) {
  EXPECT_EQ(exp_approximate(-kInfinity), 0.0f);
  EXPECT_EQ(exp_approximate(-3.4e38f), 0.0f);
  EXPECT_EQ(exp_approximate(-1000.0f), 0.0f);
  EXPECT_EQ(exp_approximate(0.0f), 1.0f);
  EXPECT_EQ(exp_approximate(-0.0f), 1.0f);
  EXPECT_EQ(exp_approximate(kInfinity), kInfinity);
  EXPECT_EQ(exp_approximate(3.4e38f), kInfinity);
  EXPECT_TRUE(std::isnan(exp_approximate(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_LT(std::abs(exp_approximate(88.72f) / std::exp(88.72f) - 1), 3e-7f);
}

TEST(Gelu, AgainstFloat64) {
  for (double x = -12; x <= 12; x += 1.0 / 64) {
    const double u = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    const double want = 0.5 * x * (1 + std::tanh(u));
    const double slope = 0.5 * (1 + std::tanh(u)) + 0.5 * x / (std::cosh(u) * std::cosh(u)) *
                                                        std::sqrt(2 / 3.14159265358979323846) *
                                                        (1 + 3 * 0.044715 * x * x);
    ASSERT_NEAR(static_cast<double>(gelu(static_cast<float>(x))), want, 3e-7 * (1 + std::abs(want))) << x;
    ASSERT_NEAR(static_cast<double>(gelu_derivative(static_cast<float>(x))), slope, 1e-6) << x;
  }
}

TEST(Gelu, FarOutAndNan) {
  EXPECT_EQ(gelu(1e30f), 1e30f);
  EXPECT_EQ(gelu(-1e4f), 0.0f);
  EXPECT_EQ(gelu_derivative(1e30f), 1.0f);
  EXPECT_NEAR(gelu_derivative(-1e30f), 0.0f, 1e-30f);
  EXPECT_TRUE(std::isnan(gelu(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(gelu_derivative(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace shardwright::kernels::cpu
