// Reference for backward passes: central differences of a forward pass written in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

namespace shardwright::kernels {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

/// Values that a float holds exactly, spread over [-range, range], the same for a seed.
inline Floats random_floats(std::int64_t n, unsigned seed, float range = 1.0f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  Floats values(static_cast<std::size_t>(n));
  for (float& v : values) v = uniform(generator);
  return values;
}

inline Doubles widen(const Floats& x) { return {x.begin(), x.end()}; }

/// Gradient of sum(weights * f(x)) with respect to x, to about 1e-9 of f's scale.
inline Doubles numeric_gradient(const std::function<Doubles(const Doubles&)>& f, Doubles x,
                                const Floats& weights) {
  Doubles gradient(x.size());
  const auto loss = [&] {
    const Doubles y = f(x);
    EXPECT_EQ(y.size(), weights.size());
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(weights[i]) * y[i];
    return sum;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], step = 1e-5;
    x[i] = at + step;
    const double up = loss();
    x[i] = at - step;
    const double down = loss();
    x[i] = at;
    gradient[i] = (up - down) / (2 * step);
  }
  return gradient;
}

/// Expects |got - want| <= tolerance * (1 + |want|) for each element, and equal sizes.
inline void expect_close(std::span<const float> got, const Doubles& want, double tolerance,
                         const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], tolerance * (1 + std::abs(want[i])))
        << what << "[" << i << "]";
  }
}

}  // namespace shardwright::kernels
