// Operations on 16-bit elements: pointwise ones are the fp32 operation on what the elements mean, rounded;
// products are checked against float64.
#include "tests/unit/kernels/sixteen_bits.h"

namespace shardwright::kernels {
namespace {

class SixteenBitOps : public testing::TestWithParam<ElementType> {
 protected:
  ElementType type() const { return GetParam(); }
  SixteenBits random(std::int64_t n, unsigned seed, float range = 1.0f) const {
    return {type(), random_floats(n, seed, range)};
  }
  SixteenBits room(std::int64_t n) const { return {type(), Floats(static_cast<std::size_t>(n), 99.0f)}; }
  SixteenBits rounded(const Floats& values) const { return {type(), values}; }
  static Floats floats(std::int64_t n, float value = 99.0f) {
    return Floats(static_cast<std::size_t>(n), value);
  }
  Stream s{DeviceKind::cpu};
};
INSTANTIATE_TEST_SUITE_P(Types, SixteenBitOps, testing::Values(ElementType::bf16, ElementType::f16),
                         type_name);

TEST_P(SixteenBitOps, Gelu) {
  for (const std::int64_t n : {0, 1, 7, 1025, 40001}) {
    const SixteenBits x = random(n, 1, 6.0f), dy = random(n, 2);
    SixteenBits y = room(n), dx = dy;
    Floats y32 = floats(n), dx32 = floats(n);
    gelu_forward(s, x, y, n);
    gelu_forward(s, x.floats().data(), y32.data(), n);
    EXPECT_EQ(y, rounded(y32));
    gelu_backward(s, dx, x, dx, n);  // in place
    gelu_backward(s, dy.floats().data(), x.floats().data(), dx32.data(), n);
    EXPECT_EQ(dx, rounded(dx32));
  }
}

TEST_P(SixteenBitOps, SwiGlu) {
  for (const auto& [rows, width] : {std::array<std::int64_t, 2>{3, 5}, {7, 1027}, {1, 97}, {0, 4}, {2, 0}}) {
    const SixteenBits gate_up = random(rows * 2 * width, 1, 5.0f), dy = random(rows * width, 2);
    SixteenBits y = room(rows * width), d = room(rows * 2 * width);
    Floats y32 = floats(rows * width), d32 = floats(rows * 2 * width);
    swiglu_forward(s, gate_up, y, rows, width);
    swiglu_forward(s, gate_up.floats().data(), y32.data(), rows, width);
    EXPECT_EQ(y, rounded(y32));
    swiglu_backward(s, dy, gate_up, d, rows, width);
    swiglu_backward(s, dy.floats().data(), gate_up.floats().data(), d32.data(), rows, width);
    EXPECT_EQ(d, rounded(d32));
  }
}

TEST_P(SixteenBitOps, NormsWriteThem) {
  for (const auto& [rows, channels] : {std::array<std::int64_t, 2>{3, 5}, {203, 97}, {0, 4}}) {
    const Floats x = random_floats(rows * channels, 1), weight = random_floats(channels, 2),
                 bias = random_floats(channels, 3);
    SixteenBits y = room(rows * channels);
    Floats y32 = floats(rows * channels), mean = floats(rows), rstd = mean, mean32 = mean, rstd32 = mean;
    layernorm_forward(s, x.data(), weight.data(), bias.data(), y, mean.data(), rstd.data(), rows, channels,
                      1e-5f);
    layernorm_forward(s, x.data(), weight.data(), bias.data(), y32.data(), mean32.data(), rstd32.data(), rows,
                      channels, 1e-5f);
    EXPECT_EQ(y, rounded(y32));
    EXPECT_EQ(mean, mean32);
    EXPECT_EQ(rstd, rstd32);
    rmsnorm_forward(s, x.data(), weight.data(), y, rstd.data(), rows, channels, 1e-5f);
    rmsnorm_forward(s, x.data(), weight.data(), y32.data(), rstd32.data(), rows, channels, 1e-5f);
    EXPECT_EQ(y, rounded(y32));
    EXPECT_EQ(rstd, rstd32);
  }
}

TEST_P(SixteenBitOps, EmbeddingsReadThem) {
  constexpr std::int64_t kRows = 7, kChannels = 1029, kHeld = 5, kFirst = 3;
  const std::int32_t tokens[kRows] = {3, 0, 7, 8, 5, 3, 2};
  const SixteenBits table = random(kHeld * kChannels, 1);
  Floats y = floats(kRows * kChannels), want = y;
  embedding_forward(s, tokens, table, y.data(), kRows, kChannels, kFirst, kHeld);
  embedding_forward(s, tokens, table.floats().data(), want.data(), kRows, kChannels, kFirst, kHeld);
  EXPECT_EQ(y, want);
  position_forward(s, table, y.data(), 4, kRows, kHeld, kChannels);
  position_forward(s, table.floats().data(), want.data(), 4, kRows, kHeld, kChannels);
  EXPECT_EQ(y, want);
}

TEST_P(SixteenBitOps, RopeTurnsThemAndLeavesTheRest) {
  constexpr std::int64_t kRows = 15, kPositions = 5, kHeads = 3, kSize = 6, kStride = 23;
  SixteenBits x = random(kRows * kStride, 1);
  Floats x32 = x.floats();
  rope(s, x, kStride, kRows, kPositions, kHeads, kSize, 10000.0f, false);
  rope(s, x32.data(), kStride, kRows, kPositions, kHeads, kSize, 10000.0f, false);
  EXPECT_EQ(x, rounded(x32));
}

TEST_P(SixteenBitOps, DropoutWritesThem) {
  const Dropout d{.p = 0.3f, .seed = 1, .purpose = 2};
  const Floats x = random_floats(20011, 1);
  SixteenBits y = room(20011);
  Floats y32 = floats(20011);
  dropout(s, d, x.data(), y, 20011, 5);
  dropout(s, d, x.data(), y32.data(), 20011, 5);
  EXPECT_EQ(y, rounded(y32));
}

TEST_P(SixteenBitOps, BiasGradient) {
  for (const auto& [rows, n] : {std::array<std::int64_t, 2>{1, 12}, {7, 5}, {203, 97}, {0, 3}, {57, 1031}}) {
    const SixteenBits dy = random(rows * n, 1);
    Floats dbias = floats(n, 0.5f), want = dbias;
    bias_backward(s, dy, dbias.data(), rows, n);
    bias_backward(s, dy.floats().data(), want.data(), rows, n);
    EXPECT_EQ(dbias, want);
  }
}

// Every mixture of types.
TEST_P(SixteenBitOps, ProductsAgainstFloat64) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{7, 5, 3}, {65, 33, 130}}) {
    for (int choice = 0; choice < 32; ++choice) {
      const bool ta = choice & 1, tb = choice & 2, wide_a = choice & 4, wide_b = choice & 8,
                 wide_c = choice & 16;
      const std::int64_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 1, ldc = n + 2;
      const SixteenBits a = random((ta ? k : m) * lda, 1), b = random((tb ? n : k) * ldb, 2);
      const Floats a32 = a.floats(), b32 = b.floats();
      const Floats before = rounded(random_floats(m * ldc, 3)).floats();
      Floats c32 = before;
      SixteenBits c = rounded(before);
      const float beta = wide_c ? 1.0f : 0.0f;
      matmul(s, ta, tb, m, n, k, 0.5f, wide_a ? ConstElements(a32.data()) : a, lda,
             wide_b ? ConstElements(b32.data()) : b, ldb, beta, wide_c ? Elements(c32.data()) : Elements(c),
             ldc);
      Doubles want = widen(before);  // what lies between rows must stay
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::int64_t l = 0; l < k; ++l) {
            sum += static_cast<double>(a32[static_cast<std::size_t>(ta ? l * lda + i : i * lda + l)]) *
                   static_cast<double>(b32[static_cast<std::size_t>(tb ? j * ldb + l : l * ldb + j)]);
          }
          double& w = want[static_cast<std::size_t>(i * ldc + j)];
          w = 0.5 * sum + (wide_c ? w : 0);
        }
      }
      expect_close(wide_c ? c32 : c.floats(), want, wide_c ? 1e-5 : 1.01 * rounding(type()), "c");
    }
  }
}

// More than one tile in each dimension, the last ones narrow.
TEST_P(SixteenBitOps, ProductsByTiles) {
  constexpr std::int64_t kM = 133, kN = 67, kK = 16411;
  const SixteenBits a = random(kM * kK, 1), b = random(kN * kK, 2);
  const Floats bias = random_floats(kN, 3), a32 = a.floats(), b32 = b.floats();
  Floats want = floats(kM * kN), wide = want, by_columns = floats(kM * kN, 0.0f), columns_want = by_columns;
  SixteenBits y = room(kM * kN);
  linear_forward(s, a32.data(), b32.data(), bias.data(), want.data(), kM, kK, kN);
  linear_forward(s, a, b, bias.data(), wide.data(), kM, kK, kN);
  linear_forward(s, a, b, bias.data(), y, kM, kK, kN);
  expect_close(wide, widen(want), 1e-4, "fp32 y");
  expect_close(y.floats(), widen(want), 1.1 * rounding(type()), "y");
  // The same memory as (k, m) and (k, n).
  matmul(s, true, false, kM, kN, kK, 1.0f, a32.data(), kM, b32.data(), kN, 1.0f, columns_want.data(), kN);
  matmul(s, true, false, kM, kN, kK, 1.0f, a, kM, b, kN, 1.0f, by_columns.data(), kN);
  expect_close(by_columns, widen(columns_want), 1e-4, "c");
}

TEST_P(SixteenBitOps, ProductsOverNothing) {
  SixteenBits c = rounded({1, 2, 3, 4, 5, 6});
  matmul(s, false, false, 2, 2, 0, 1.0f, nullptr, 1, nullptr, 2, 0.0f, c, 3);
  EXPECT_EQ(c.floats(), (Floats{0, 0, 3, 0, 0, 6}));
}

TEST_P(SixteenBitOps, LinearForwardAndBackwardAgainstFloat64) {
  for (const auto& [rows, in, out] :
       {std::array<std::int64_t, 3>{1, 12, 5}, {7, 4, 12}, {3, 97, 1}, {5, 3, 0}}) {
    const SixteenBits x = random(rows * in, 1), w = random(out * in, 2), dy = random(rows * out, 4);
    const Floats bias = random_floats(out, 3);
    const auto reference = [&, rows = rows, in = in, out = out](const Doubles& all) {
      const double* const xs = all.data();
      const double* const ws = xs + rows * in;
      Doubles y;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
          double sum = ws[out * in + o];
          for (std::int64_t i = 0; i < in; ++i) sum += xs[r * in + i] * ws[o * in + i];
          y.push_back(sum);
        }
      }
      return y;
    };
    Doubles all = widen(x.floats());
    for (const Floats& part : {w.floats(), bias}) all.insert(all.end(), part.begin(), part.end());
    SixteenBits y = room(rows * out);
    linear_forward(s, x, w, bias.data(), y, rows, in, out);
    expect_close(y.floats(), reference(all), 1.01 * rounding(type()), "y");

    const Doubles want = numeric_gradient(reference, all, dy.floats());
    SixteenBits dx = room(rows * in);
    Floats dx32 = floats(rows * in), got = floats(out * in + out, 1.0f);
    linear_backward(s, dy, x, w, dx, got.data(), got.data() + out * in, rows, in, out);
    linear_backward(s, dy, x, w, dx32.data(), nullptr, nullptr, rows, in, out);
    const auto middle = want.begin() + rows * in;
    expect_close(dx.floats(), {want.begin(), middle}, 1.01 * rounding(type()), "dx");
    expect_close(dx32, {want.begin(), middle}, 1e-5, "fp32 dx");
    for (float& v : got) v -= 1.0f;  // accumulated on what was there
    expect_close(got, {middle, want.end()}, 1e-5, "dw, dbias");
  }
}

}  // namespace
}  // namespace shardwright::kernels
