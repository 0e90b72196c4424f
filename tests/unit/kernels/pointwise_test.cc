#include <limits>

#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

const std::int64_t kSizes[] = {0, 1, 7, 8, 97, 40001};

TEST(Pointwise, AddScaleZeroCopyFill) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t n : kSizes) {
    const Floats x = random_floats(n, 1), before = random_floats(n, 2);
    Floats y = before, want = before;
    add(s, x.data(), y.data(), n);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += x[i];
    EXPECT_EQ(y, want);
    scale(s, 0.3f, y.data(), n);
    for (float& w : want) w *= 0.3f;
    EXPECT_EQ(y, want);
    copy(s, x.data(), y.data(), n);
    EXPECT_EQ(y, x);
    fill(s, 2.5f, y.data(), n);
    EXPECT_EQ(y, Floats(x.size(), 2.5f));
    zero(s, y.data(), n);
    EXPECT_EQ(y, Floats(x.size(), 0.0f));
  }
}

TEST(Pointwise, BiasForwardAndBackward) {
  Stream s(DeviceKind::cpu);
  for (const auto& [rows, n] : {std::array<std::int64_t, 2>{1, 12}, {7, 5}, {203, 97}, {0, 3}, {1000, 100}}) {
    const Floats bias = random_floats(n, 1), dy = random_floats(rows * n, 2);
    Floats y = dy, dbias(bias.size(), 0.5f);
    add_bias(s, bias.data(), y.data(), rows, n);
    bias_backward(s, dy.data(), dbias.data(), rows, n);
    Doubles sums(bias.size(), 0.5);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t column = i % static_cast<std::size_t>(n);
      ASSERT_EQ(y[i], dy[i] + bias[column]);
      sums[column] += static_cast<double>(dy[i]);
    }
    expect_close(dbias, sums, 1e-5, "dbias");
  }
}

TEST(Pointwise, GeluForwardAndBackward) {
  Stream s(DeviceKind::cpu);
  const auto reference = [](const Doubles& x) {
    Doubles y;
    for (const double v : x) {
      y.push_back(0.5 * v *
                  (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v))));
    }
    return y;
  };
  for (const std::int64_t n : {1, 7, 97}) {
    const Floats x = random_floats(n, 1, 6.0f), dy = random_floats(n, 2);
    Floats y(x.size()), dx(x.size());
    gelu_forward(s, x.data(), y.data(), n);
    expect_close(y, reference(widen(x)), 3e-7, "y");
    gelu_backward(s, dy.data(), x.data(), dx.data(), n);
    expect_close(dx, numeric_gradient(reference, widen(x), dy), 1e-6, "dx");
    Floats in_place = dy;
    gelu_backward(s, in_place.data(), x.data(), in_place.data(), n);
    EXPECT_EQ(in_place, dx);
  }
}

TEST(Pointwise, SumOfSquaresInFloat64) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t n : kSizes) {
    const Floats x = random_floats(n, 1);
    double want = 0;
    for (const float v : x) want += static_cast<double>(v) * static_cast<double>(v);
    EXPECT_NEAR(sum_of_squares(s, x.data(), n), want, 1e-12 * (1 + want));
  }
}

TEST(Pointwise, AllFiniteSeesOneBadElementAnywhere) {
  Stream s(DeviceKind::cpu);
  Floats x = random_floats(40001, 1);
  x[5] = std::numeric_limits<float>::max();
  EXPECT_TRUE(all_finite(s, x.data(), 40001));
  EXPECT_TRUE(all_finite(s, x.data(), 0));
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{20000}, std::size_t{40000}}) {
      Floats y = x;
      y[place] = bad;
      EXPECT_FALSE(all_finite(s, y.data(), 40001)) << bad << " at " << place;
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels
