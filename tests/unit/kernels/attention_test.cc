#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"
#include "tests/unit/kernels/sixteen_bits.h"

namespace shardwright::kernels {
namespace {

struct Shape {
  std::int64_t batch, positions, heads, kv_heads, head_size;
  std::int64_t width() const { return (heads + 2 * kv_heads) * head_size; }  // of the fused q, k, v row
  std::int64_t out_width() const { return heads * head_size; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }
};

// What dropout multiplies the probability that query t of head h of sequence b gives to key u with.
double factor(const Shape& n, const AttentionDropout* d, std::int64_t b, std::int64_t h, std::int64_t t,
              std::int64_t u) {
  if (d == nullptr) return 1;
  const auto sequence = static_cast<std::int64_t>(d->first_sequence) + b;
  const auto index = static_cast<std::uint64_t>(
      ((sequence * d->all_heads + d->first_head + h) * n.positions + t) * n.positions + u);
  const double p = static_cast<double>(d->dropout.p);
  const std::uint32_t word = philox(d->dropout.seed, d->dropout.purpose, index / 4).w[index % 4];
  return word < p * 0x1p32 ? 0 : 1 / (1 - p);
}

// Fused rows (B, T, width) -> out (B, T, H, D), and, if asked for, log-sum-exps (B, H, T).
Doubles reference(const Shape& n, const Doubles& fused, const AttentionDropout* dropout,
                  Doubles* lse = nullptr, const float* slopes = nullptr) {
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
          const double distance = static_cast<double>(t - u);
          const double bias = slopes == nullptr ? 0 : -static_cast<double>(slopes[h]) * distance;
          p.push_back(score * static_cast<double>(n.scale()) + bias);
        }
        const double largest = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& score : p) sum += score = std::exp(score - largest);
        if (lse != nullptr) lse->push_back(largest + std::log(sum));
        double* const o = out.data() + (b * n.positions + t) * n.out_width() + h * n.head_size;
        for (std::int64_t u = 0; u <= t; ++u) {
          const double given = p[static_cast<std::size_t>(u)] / sum * factor(n, dropout, b, h, t, u);
          for (std::int64_t d = 0; d < n.head_size; ++d) o[d] += given * v[u * n.width() + d];
        }
      }
    }
  }
  return out;
}

struct Result {
  Floats out, lse, gradient;
};

Result run(const Shape& n, const Floats& fused, const Floats& dout, const AttentionDropout* dropout = nullptr,
           const float* slopes = nullptr) {
  Stream s(DeviceKind::cpu);
  Result r{Floats(dout.size(), 99.0f),
           Floats(static_cast<std::size_t>(n.batch * n.heads * n.positions), 99.0f),
           Floats(fused.size(), 99.0f)};
  const std::int64_t k = n.heads * n.head_size, v = k + n.kv_heads * n.head_size;
  attention_forward(s, fused.data(), fused.data() + k, fused.data() + v, n.width(), r.out.data(),
                    r.lse.data(), n.batch, n.positions, n.heads, n.kv_heads, n.head_size, n.scale(), dropout,
                    slopes);
  float* const g = r.gradient.data();
  attention_backward(s, dout.data(), fused.data(), fused.data() + k, fused.data() + v, n.width(),
                     r.out.data(), r.lse.data(), g, g + k, g + v, n.width(), n.batch, n.positions, n.heads,
                     n.kv_heads, n.head_size, n.scale(), dropout, slopes);
  return r;
}

class Attention : public testing::TestWithParam<Shape> {};

// Slopes of the last heads of more, as a tensor-parallel rank has them.
Floats some_slopes(const Shape& n) {
  Floats slopes(static_cast<std::size_t>(n.heads));
  Stream s(DeviceKind::cpu);
  alibi_slopes(s, slopes.data(), 2, n.heads, n.heads + 2);
  return slopes;
}

void expect_float64(const Shape& n, const AttentionDropout* dropout, const float* slopes = nullptr) {
  const Floats fused = random_floats(n.batch * n.positions * n.width(), 1, 2.0f);
  const Floats dout = random_floats(n.batch * n.positions * n.out_width(), 2);
  const Result got = run(n, fused, dout, dropout, slopes);
  Doubles lse;
  expect_close(got.out, reference(n, widen(fused), dropout, &lse, slopes), 3e-6, "out");
  expect_close(got.lse, lse, 3e-6, "lse");
  const auto f = [&](const Doubles& x) { return reference(n, x, dropout, nullptr, slopes); };
  expect_close(got.gradient, numeric_gradient(f, widen(fused), dout), 1e-5, "gradient");
}

TEST_P(Attention, ForwardAndBackwardAgainstFloat64) { expect_float64(GetParam(), nullptr); }

TEST_P(Attention, WithDropoutAgainstFloat64) {
  const AttentionDropout dropout{.dropout = {.p = 0.3f, .seed = 11, .purpose = 12},
                                 .first_sequence = 1000003,
                                 .all_heads = GetParam().heads + 5,
                                 .first_head = 3};
  expect_float64(GetParam(), &dropout);
}

TEST_P(Attention, WithSlopesAgainstFloat64) {
  const Floats slopes = some_slopes(GetParam());
  expect_float64(GetParam(), nullptr, slopes.data());
  const AttentionDropout dropout{.dropout = {.p = 0.3f, .seed = 11, .purpose = 12},
                                 .first_sequence = 1000003,
                                 .all_heads = GetParam().heads + 2,
                                 .first_head = 2};
  expect_float64(GetParam(), &dropout, slopes.data());
}

// The last ones: each query head its own key head, three on one, and all on one, as tensor-parallel ranks
// hold them.
INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(Shape{1, 1, 1, 1, 4}, Shape{2, 7, 3, 3, 4}, Shape{1, 5, 4, 2, 5},
                                         Shape{2, 3, 6, 1, 1}, Shape{1, 67, 1, 1, 2}, Shape{2, 3, 5, 5, 3},
                                         Shape{1, 5, 12, 4, 2}, Shape{2, 3, 3, 1, 6}, Shape{1, 5, 7, 1, 3}));

// Probabilities and their gradients stay fp32 inside; what is read and written has 16 bits.
TEST_P(Attention, SixteenBitsAgainstFloat64) {
  const Shape& n = GetParam();
  const Floats slopes = some_slopes(n);
  const AttentionDropout dropout{.dropout = {.p = 0.3f, .seed = 11, .purpose = 12},
                                 .first_sequence = 1000003,
                                 .all_heads = n.heads + 5,
                                 .first_head = 3};
  for (const ElementType type : {ElementType::bf16, ElementType::f16}) {
    const SixteenBits fused(type, random_floats(n.batch * n.positions * n.width(), 1, 2.0f));
    const SixteenBits dout(type, random_floats(n.batch * n.positions * n.out_width(), 2));
    SixteenBits out = dout, gradient = fused;
    Floats lse(static_cast<std::size_t>(n.batch * n.heads * n.positions));
    const std::int64_t k = n.heads * n.head_size, v = k + n.kv_heads * n.head_size;
    Stream s(DeviceKind::cpu);
    const ConstElements in = fused;
    attention_forward(s, in, in + k, in + v, n.width(), out, lse.data(), n.batch, n.positions, n.heads,
                      n.kv_heads, n.head_size, n.scale(), &dropout, slopes.data());
    attention_backward(s, dout, in, in + k, in + v, n.width(), out, lse.data(), gradient, gradient + k,
                       gradient + v, n.width(), n.batch, n.positions, n.heads, n.kv_heads, n.head_size,
                       n.scale(), &dropout, slopes.data());
    const auto f = [&](const Doubles& x) { return reference(n, x, &dropout, nullptr, slopes.data()); };
    Doubles want_lse;
    expect_close(out.floats(), reference(n, widen(fused.floats()), &dropout, &want_lse, slopes.data()),
                 1.1 * rounding(type), "out");
    expect_close(lse, want_lse, 3e-6, "lse");
    // Backward reads the rounded `out`, for which the factor allows.
    expect_close(gradient.floats(), numeric_gradient(f, widen(fused.floats()), dout.floats()),
                 6 * rounding(type), "gradient");
  }
}

// Ranks with some of the heads, and micro-batches with some of the sequences, drop what one rank with all
// drops.
TEST(Attention, DropoutOfAPartIsThatOfTheWhole) {
  const Shape whole{3, 70, 6, 3, 4};
  const AttentionDropout all{
      .dropout = {.p = 0.4f, .seed = 1, .purpose = 2}, .first_sequence = 8, .all_heads = 6, .first_head = 0};
  const Floats fused = random_floats(whole.batch * whole.positions * whole.width(), 1);
  const Floats dout = random_floats(whole.batch * whole.positions * whole.out_width(), 2);
  const Result want = run(whole, fused, dout, &all);

  // Sequences 1 and 2, key heads 1 and 2: columns of q, k and v rows and of out rows.
  const Shape part{2, 70, 4, 2, 4};
  AttentionDropout mine = all;
  mine.first_sequence += 1;
  mine.first_head = 2;
  const auto cut = [&](const Floats& x, bool fused_rows) {
    Floats y;
    for (std::int64_t row = whole.positions; row < whole.batch * whole.positions; ++row) {
      const auto take = [&](std::int64_t from, std::int64_t to) {
        const float* const at = x.data() + row * (fused_rows ? whole.width() : whole.out_width());
        y.insert(y.end(), at + from * whole.head_size, at + to * whole.head_size);
      };
      take(2, 6);
      if (!fused_rows) continue;
      take(7, 9);
      take(10, 12);
    }
    return y;
  };
  const Result got = run(part, cut(fused, true), cut(dout, false), &mine);
  expect_close(got.out, widen(cut(want.out, false)), 1e-6, "out");
  expect_close(got.gradient, widen(cut(want.gradient, true)), 1e-6, "gradient");
  mine.first_head = 1;
  EXPECT_NE(run(part, cut(fused, true), cut(dout, false), &mine).out, got.out);
}

TEST(Attention, DropoutOfShareZeroChangesNoBit) {
  const Shape n{2, 71, 3, 1, 4};
  const AttentionDropout none{
      .dropout = {.p = 0, .seed = 1, .purpose = 2}, .first_sequence = 0, .all_heads = 3, .first_head = 0};
  const Floats fused = random_floats(n.batch * n.positions * n.width(), 1);
  const Floats dout = random_floats(n.batch * n.positions * n.out_width(), 2);
  const Result with = run(n, fused, dout, &none), without = run(n, fused, dout);
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.gradient, without.gradient);
}

TEST(Attention, SlopesOfZeroChangeNoBit) {
  const Shape n{2, 71, 3, 1, 4};
  const Floats fused = random_floats(n.batch * n.positions * n.width(), 1), flat(3);
  const Floats dout = random_floats(n.batch * n.positions * n.out_width(), 2);
  const Result with = run(n, fused, dout, nullptr, flat.data()), without = run(n, fused, dout);
  EXPECT_EQ(with.out, without.out);
  EXPECT_EQ(with.gradient, without.gradient);
}

TEST(Attention, RanksWithoutHeadsOrSequences) {
  for (const Shape& n : {Shape{2, 3, 0, 0, 4}, Shape{0, 3, 4, 2, 4}, Shape{2, 0, 4, 2, 4}}) {
    const Result untouched = run(n, Floats(64), Floats(64));
    EXPECT_EQ(untouched.out, Floats(64, 99.0f));
    EXPECT_EQ(untouched.gradient, Floats(64, 99.0f));
  }
}

// Long enough for strips whose scores lie far apart; backward against float64 formulas would take long, so
// against itself with other threads: the bits must not depend on their number as long as each head has one.
TEST(Attention, SameBitsForAnyNumberOfThreadsAndFarApartScores) {
  const Shape n{2, 150, 5, 5, 8};
  const Floats fused = random_floats(n.batch * n.positions * n.width(), 1, 40.0f);
  const Floats dout = random_floats(n.batch * n.positions * n.out_width(), 2);
  const AttentionDropout some{
      .dropout = {.p = 0.1f, .seed = 1, .purpose = 2}, .first_sequence = 3, .all_heads = 5, .first_head = 0};
  const int before = threads();
  for (const AttentionDropout* dropout : std::array<const AttentionDropout*, 2>{nullptr, &some}) {
    set_threads(2);
    const Result first = run(n, fused, dout, dropout);
    expect_close(first.out, reference(n, widen(fused), dropout), 1e-3, "out");
    for (const int count : {1, 3, 4}) {
      set_threads(count);
      const Result other = run(n, fused, dout, dropout);
      EXPECT_EQ(other.out, first.out) << count;
      EXPECT_EQ(other.lse, first.lse) << count;
      EXPECT_EQ(other.gradient, first.gradient) << count;
    }
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
