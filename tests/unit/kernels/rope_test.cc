#include <thread>

#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

struct Shape {
  std::int64_t rows, positions, heads, head_size, stride;
  float theta;
  std::int64_t floats() const { return rows * stride; }
};

// Values between the heads' end and the stride are left as they are.
Doubles reference(const Shape& n, Doubles x) {
  const std::int64_t half = n.head_size / 2;
  for (std::int64_t r = 0; r < n.rows; ++r) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      double* const head = x.data() + r * n.stride + h * n.head_size;
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(n.head_size);
        const double angle =
            static_cast<double>(r % n.positions) * std::pow(static_cast<double>(n.theta), exponent);
        const double a = head[i], b = head[half + i];
        head[i] = a * std::cos(angle) - b * std::sin(angle);
        head[half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  return x;
}

void turn(const Shape& n, Floats& x, bool inverse) {
  Stream s(DeviceKind::cpu);
  rope(s, x.data(), n.stride, n.rows, n.positions, n.heads, n.head_size, n.theta, inverse);
}

class Rope : public testing::TestWithParam<Shape> {};

TEST_P(Rope, AgainstFloat64) {
  const Shape n = GetParam();
  const Floats x = random_floats(n.floats(), 1, 2.0f);
  Floats y = x;
  turn(n, y, false);
  expect_close(y, reference(n, widen(x)), 1e-6, "y");
}

// The gradient outside of the heads is left as it is, like a neighbour's in a fused buffer.
TEST_P(Rope, InverseIsBackward) {
  const Shape n = GetParam();
  if (n.floats() > 2000) return;  // central differences would take seconds
  const Floats x = random_floats(n.floats(), 1), dy = random_floats(std::ssize(x), 2);
  Floats dx = dy;
  turn(n, dx, true);
  const auto f = [&](const Doubles& v) { return reference(n, v); };
  expect_close(dx, numeric_gradient(f, widen(x), dy), 2e-6, "dx");
}

TEST_P(Rope, InverseTurnsBackAndNormsStay) {
  const Shape n = GetParam();
  const Floats x = random_floats(n.floats(), 1);
  Floats y = x;
  turn(n, y, false);
  const auto norm = [&](const Floats& v, std::int64_t at) {
    double sum = 0;
    for (std::int64_t i = at; i < at + n.head_size; ++i) {
      sum += std::pow(static_cast<double>(v[static_cast<std::size_t>(i)]), 2);
    }
    return std::sqrt(sum);
  };
  for (std::int64_t r = 0; r < n.rows; ++r) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      const std::int64_t at = r * n.stride + h * n.head_size;
      ASSERT_NEAR(norm(y, at), norm(x, at), 1e-6 * (1 + norm(x, at)));
    }
    if (r % n.positions == 0) {
      const auto from = r * n.stride, to = from + n.stride;
      ASSERT_TRUE(std::equal(y.begin() + from, y.begin() + to, x.begin() + from)) << "position 0, row " << r;
    }
  }
  turn(n, y, true);
  expect_close(y, widen(x), 1e-6, "turned back");
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rope,
                         testing::Values(Shape{1, 1, 1, 2, 2, 10000.0f}, Shape{7, 7, 3, 4, 12, 10000.0f},
                                         Shape{14, 7, 5, 6, 47, 10000.0f}, Shape{9, 3, 1, 22, 31, 100.0f},
                                         Shape{300, 150, 5, 64, 7 * 64, 500000.0f}));

// cos(3), sin(3), cos(0.3), sin(0.3): with theta 100 and heads of 4 the second pair turns a tenth as fast.
TEST(RopeValues, KnownPair) {
  Floats x(4 * 4);
  std::copy_n(Floats{1, 0, 0, 2}.begin(), 4, x.begin() + 12);
  turn({4, 4, 1, 4, 4, 100.0f}, x, false);
  const Floats got(x.begin() + 12, x.end());
  expect_close(got,
               {-0.98999249660044542, -2 * 0.29552020666133955, 0.14112000805986721, 2 * 0.95533648912560598},
               1e-7, "row of position 3");
}

TEST(RopeValues, NothingHeldIsLeftAlone) {
  Floats x(5, 3.0f);
  turn({0, 7, 3, 4, 12, 10000.0f}, x, false);
  turn({1, 7, 0, 4, 5, 10000.0f}, x, false);
  EXPECT_EQ(x, Floats(5, 3.0f));
}

// Calls of other sizes and thetas between, from two threads at once, and any number of threads per call.
TEST(RopeValues, SameBitsWhateverWasTurnedBefore) {
  const Shape n{600, 300, 3, 16, 48, 10000.0f};
  const Floats x = random_floats(n.floats(), 1);
  const int before = threads();
  set_threads(1);
  Floats first = x;
  turn(n, first, false);
  for (const int count : {2, 3, 5}) {
    set_threads(count);
    const auto work = [&] {
      for (const Shape& other : {Shape{600, 20, 3, 16, 48, 10000.0f}, Shape{600, 300, 3, 16, 48, 500.0f},
                                 Shape{600, 200, 6, 8, 48, 10000.0f}}) {
        Floats y = x;
        turn(other, y, false);
        EXPECT_NE(y, first);
        y = x;
        turn(n, y, false);
        EXPECT_EQ(y, first) << count;
      }
    };
    std::jthread beside(work);
    work();
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
