#include <thread>

#include "kernels/ops.h"
#include "kernels/peak.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

double element(const Floats& x, std::int64_t stride, bool transpose, std::int64_t row, std::int64_t column) {
  return static_cast<double>(
      x[static_cast<std::size_t>(transpose ? column * stride + row : row * stride + column)]);
}

TEST(Matmul, EachTransposeAlphaBetaAndLeadingDimension) {
  Stream s(DeviceKind::cpu);
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {7, 5, 3}, {12, 97, 4}, {65, 33, 130}}) {
    for (int choice = 0; choice < 16; ++choice) {
      const bool ta = choice & 1, tb = choice & 2;
      const float alpha = choice & 4 ? 0.5f : 1.0f, beta = choice & 8 ? 1.0f : 0.0f;
      const std::int64_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 1, ldc = n + 2;
      const Floats a = random_floats((ta ? k : m) * lda, 1), b = random_floats((tb ? n : k) * ldb, 2);
      const Floats before = random_floats(m * ldc, 3);
      Floats c = before;
      matmul(s, ta, tb, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
      Doubles want = widen(before);  // what lies between rows must stay
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::int64_t l = 0; l < k; ++l) sum += element(a, lda, ta, i, l) * element(b, ldb, tb, l, j);
          double& w = want[static_cast<std::size_t>(i * ldc + j)];
          w = static_cast<double>(alpha) * sum + static_cast<double>(beta) * w;
        }
      }
      expect_close(c, want, 1e-5, "c");
    }
  }
}

TEST(Matmul, NothingToSumAndNothingToWrite) {
  Stream s(DeviceKind::cpu);
  Floats c{1, 2, 3, 4, 5, 6};
  matmul(s, false, false, 2, 2, 0, 1.0f, nullptr, 1, nullptr, 2, 1.0f, c.data(), 3);
  EXPECT_EQ(c, (Floats{1, 2, 3, 4, 5, 6}));
  matmul(s, false, false, 2, 2, 0, 1.0f, nullptr, 1, nullptr, 2, 0.0f, c.data(), 3);
  EXPECT_EQ(c, (Floats{0, 0, 3, 0, 0, 6}));
  matmul(s, false, false, 0, 2, 3, 1.0f, nullptr, 3, c.data(), 2, 0.0f, nullptr, 2);
  matmul(s, false, false, 2, 0, 3, 1.0f, c.data(), 3, nullptr, 1, 0.0f, nullptr, 1);
}

TEST(Linear, ForwardAndBackwardAgainstFloat64) {
  Stream s(DeviceKind::cpu);
  for (const auto& [rows, in, out] : {std::array<std::int64_t, 3>{1, 12, 5}, {7, 4, 12}, {3, 97, 1}}) {
    const Floats x = random_floats(rows * in, 1), w = random_floats(out * in, 2),
                 bias = random_floats(out, 3);
    const Floats dy = random_floats(rows * out, 4);
    const auto reference = [&, rows = rows, in = in, out = out](const Doubles& all) {
      const double* const dx = all.data();
      const double* const dw = dx + rows * in;
      const double* const db = dw + out * in;
      Doubles y;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
          double sum = db[o];
          for (std::int64_t i = 0; i < in; ++i) sum += dx[r * in + i] * dw[o * in + i];
          y.push_back(sum);
        }
      }
      return y;
    };
    Doubles all = widen(x);
    for (const Floats* part : {&w, &bias}) all.insert(all.end(), part->begin(), part->end());
    Floats y(dy.size(), 99.0f);
    linear_forward(s, x.data(), w.data(), bias.data(), y.data(), rows, in, out);
    expect_close(y, reference(all), 1e-5, "y");

    const Doubles want = numeric_gradient(reference, all, dy);
    Floats dx(x.size(), 99.0f), dw(w.size(), 1.0f), dbias(bias.size(), 1.0f);
    linear_backward(s, dy.data(), x.data(), w.data(), dx.data(), dw.data(), dbias.data(), rows, in, out);
    Floats got = dx;
    for (const float v : dw) got.push_back(v - 1.0f);  // accumulated on what was there
    for (const float v : dbias) got.push_back(v - 1.0f);
    expect_close(got, want, 1e-5, "gradient");
  }
}

TEST(Linear, NoBiasAndNoGradientsAsked) {
  Stream s(DeviceKind::cpu);
  const Floats x{1, 2}, w{3, 4};
  Floats y{0};
  linear_forward(s, x.data(), w.data(), nullptr, y.data(), 1, 2, 1);
  EXPECT_EQ(y[0], 11.0f);
  linear_backward(s, y.data(), x.data(), w.data(), nullptr, nullptr, nullptr, 1, 2, 1);
}

TEST(Linear, VocabularySliceOfNoRows) {
  Stream s(DeviceKind::cpu);
  const Floats x{1, 2};
  Floats dx{5, 5};
  linear_forward(s, x.data(), nullptr, nullptr, nullptr, 1, 2, 0);
  linear_backward(s, nullptr, x.data(), nullptr, dx.data(), nullptr, nullptr, 1, 2, 0);
  EXPECT_EQ(dx, (Floats{0, 0}));
}

TEST(Matmul, SameBitsFromManyThreadsAtOnce) {
  constexpr std::int64_t kSize = 48;
  const Floats a = random_floats(kSize * kSize, 1), b = random_floats(kSize * kSize, 2);
  std::vector<Floats> results(4, Floats(a.size()));
  std::vector<std::thread> callers;
  for (Floats& c : results) {
    callers.emplace_back([&a, &b, &c] {
      Stream s(DeviceKind::cpu);
      for (std::int64_t n = kSize - 8; n <= kSize; ++n) {  // each shape new to all of them at once
        matmul(s, false, true, kSize, n, kSize, 1.0f, a.data(), kSize, b.data(), kSize, 0.0f, c.data(),
               kSize);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const Floats& c : results) EXPECT_EQ(c, results[0]);
}

TEST(Peak, IsPositive) {
  Stream s(DeviceKind::cpu);
  EXPECT_GT(peak_matmul_gflops(s, 64, 0.001), 0.0);
}

}  // namespace
}  // namespace shardwright::kernels
