#include <limits>

#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

// gate_up(rows, 2F) -> y(rows, F)
Doubles reference(const Doubles& gate_up, std::int64_t rows, std::int64_t width) {
  Doubles y;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* const gate = gate_up.data() + r * 2 * width;
    for (std::int64_t i = 0; i < width; ++i)
      y.push_back(gate[i] / (1 + std::exp(-gate[i])) * gate[width + i]);
  }
  return y;
}

TEST(SwiGlu, ForwardAndBackwardAgainstFloat64) {
  Stream s(DeviceKind::cpu);
  for (const auto& [rows, width] :
       {std::array<std::int64_t, 2>{1, 1}, {7, 5}, {3, 33}, {5, 16}, {0, 5}, {7, 0}}) {
    const Floats gate_up = random_floats(rows * 2 * width, 1, 6.0f), dy = random_floats(rows * width, 2);
    Floats y(dy.size(), 99.0f), gradient(gate_up.size(), 99.0f);
    swiglu_forward(s, gate_up.data(), y.data(), rows, width);
    expect_close(y, reference(widen(gate_up), rows, width), 1e-6, "y");
    swiglu_backward(s, dy.data(), gate_up.data(), gradient.data(), rows, width);
    const auto f = [&, rows = rows, width = width](const Doubles& v) { return reference(v, rows, width); };
    expect_close(gradient, numeric_gradient(f, widen(gate_up), dy), 2e-6, "gradient");
  }
}

TEST(SwiGlu, FarFromZeroAndNotANumber) {
  Stream s(DeviceKind::cpu);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats gate_up{-1e30f, -100, -88, 88, 100, 1e30f, nan, 2, 2, 2, 2, 2, 2, 2};
  const Floats dy(7, 1.0f);
  Floats y(7), gradient(14);
  swiglu_forward(s, gate_up.data(), y.data(), 1, 7);
  swiglu_backward(s, dy.data(), gate_up.data(), gradient.data(), 1, 7);
  const Floats want_y{0, 0, 0, 176, 200, 2e30f}, want_gate{0, 0, 0, 2, 2, 2},
      want_up{0, 0, 0, 88, 100, 1e30f};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(y[i], want_y[i], 1e-30) << i;
    EXPECT_NEAR(gradient[i], want_gate[i], 1e-30) << i;
    EXPECT_NEAR(gradient[7 + i], want_up[i], 1e-30) << i;
  }
  for (const float v : {y[6], gradient[6], gradient[13]}) EXPECT_TRUE(std::isnan(v));
}

TEST(SwiGlu, SameBitsForAnyNumberOfThreads) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kRows = 501, kWidth = 131;
  const Floats gate_up = random_floats(kRows * 2 * kWidth, 1, 3.0f), dy = random_floats(kRows * kWidth, 2);
  const int before = threads();
  Floats first;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    Floats result(dy.size() + gate_up.size());
    swiglu_forward(s, gate_up.data(), result.data(), kRows, kWidth);
    swiglu_backward(s, dy.data(), gate_up.data(), result.data() + dy.size(), kRows, kWidth);
    if (first.empty()) first = result;
    EXPECT_EQ(result, first) << count;
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
