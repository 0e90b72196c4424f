#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

struct Shape {
  std::int64_t batch, positions, heads, kv_heads, head_size;
  std::int64_t width() const { return (heads + 2 * kv_heads) * head_size; }  // of the fused q, k, v row
  std::int64_t out_width() const { return heads * head_size; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }
};

// Fused rows (B, T, width) -> out (B, T, H, D), and, if asked for, log-sum-exps (B, H, T).
Doubles reference(const Shape& n, const Doubles& fused, Doubles* lse = nullptr) {
  Doubles out(static_cast<std::size_t>(n.batch * n.positions * n.out_width()));
  for (std::int64_t b = 0; b < n.batch; ++b) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      const std::int64_t shared = h / (n.heads / n.kv_heads);
      for (std::int64_t t = 0; t < n.positions; ++t) {
        const double* const base = fused.data() + b * n.positions * n.width();
        const double* const q = base + t * n.width() + h * n.head_size;
        const double* const k = base + (n.heads + shared) * n.head_size;
        const double* const v = k + n.kv_heads * n.head_size;
        Doubles p;
        for (std::int64_t u = 0; u <= t; ++u) {
          double score = 0;
          for (std::int64_t d = 0; d < n.head_size; ++d) score += q[d] * k[u * n.width() + d];
          p.push_back(score * static_cast<double>(n.scale()));
        }
        const double largest = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& score : p) sum += score = std::exp(score - largest);
        if (lse != nullptr) lse->push_back(largest + std::log(sum));
        double* const o = out.data() + (b * n.positions + t) * n.out_width() + h * n.head_size;
        for (std::int64_t u = 0; u <= t; ++u) {
          for (std::int64_t d = 0; d < n.head_size; ++d) {
            o[d] += p[static_cast<std::size_t>(u)] / sum * v[u * n.width() + d];
          }
        }
      }
    }
  }
  return out;
}

struct Result {
  Floats out, lse, gradient;
};

Result run(const Shape& n, const Floats& fused, const Floats& dout) {
  Stream s(DeviceKind::cpu);
  Result r{Floats(dout.size(), 99.0f),
           Floats(static_cast<std::size_t>(n.batch * n.heads * n.positions), 99.0f),
           Floats(fused.size(), 99.0f)};
  const std::int64_t k = n.heads * n.head_size, v = k + n.kv_heads * n.head_size;
  attention_forward(s, fused.data(), fused.data() + k, fused.data() + v, n.width(), r.out.data(),
                    r.lse.data(), n.batch, n.positions, n.heads, n.kv_heads, n.head_size, n.scale());
  float* const g = r.gradient.data();
  attention_backward(s, dout.data(), fused.data(), fused.data() + k, fused.data() + v, n.width(),
                     r.out.data(), r.lse.data(), g, g + k, g + v, n.width(), n.batch, n.positions, n.heads,
                     n.kv_heads, n.head_size, n.scale());
  return r;
}

class Attention : public testing::TestWithParam<Shape> {};

TEST_P(Attention, ForwardAndBackwardAgainstFloat64) {
  const Shape n = GetParam();
  const Floats fused = random_floats(n.batch * n.positions * n.width(), 1, 2.0f);
  const Floats dout = random_floats(n.batch * n.positions * n.out_width(), 2);
  const Result got = run(n, fused, dout);
  Doubles lse;
  expect_close(got.out, reference(n, widen(fused), &lse), 3e-6, "out");
  expect_close(got.lse, lse, 3e-6, "lse");
  const auto f = [&](const Doubles& x) { return reference(n, x); };
  expect_close(got.gradient, numeric_gradient(f, widen(fused), dout), 1e-5, "gradient");
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(Shape{1, 1, 1, 1, 4}, Shape{2, 7, 3, 3, 4}, Shape{1, 5, 4, 2, 5},
                                         Shape{2, 3, 6, 1, 1}, Shape{1, 67, 1, 1, 2}));

// Long enough for strips whose scores lie far apart; backward against float64 formulas would take long, so
// against itself with other threads: the bits must not depend on their number as long as each head has one.
TEST(Attention, SameBitsForAnyNumberOfThreadsAndFarApartScores) {
  const Shape n{2, 150, 5, 5, 8};
  const Floats fused = random_floats(n.batch * n.positions * n.width(), 1, 40.0f);
  const Floats dout = random_floats(n.batch * n.positions * n.out_width(), 2);
  const int before = threads();
  set_threads(2);
  const Result first = run(n, fused, dout);
  expect_close(first.out, reference(n, widen(fused)), 1e-3, "out");
  for (const int count : {1, 3, 4}) {
    set_threads(count);
    const Result other = run(n, fused, dout);
    EXPECT_EQ(other.out, first.out) << count;
    EXPECT_EQ(other.lse, first.lse) << count;
    EXPECT_EQ(other.gradient, first.gradient) << count;
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
