#include <limits>

#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

// Mean loss over rows with a target, from logits (rows, V).
Doubles reference(const Doubles& logits, const std::vector<std::int32_t>& targets, std::size_t vocabulary) {
  Doubles losses;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const double* const row = logits.data() + r * vocabulary;
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(row[i]);
    losses.push_back(targets[r] < 0 ? 0 : std::log(sum) - row[targets[r]]);
  }
  return losses;
}

// The vocabulary cut in slices, one of them empty, reduced as ranks would.
TEST(CrossEntropy, SlicedForwardAndBackwardAgainstFloat64) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kVocabulary = 97, kRows = 7;
  const std::vector<std::array<std::int64_t, 2>> slices{{0, 33}, {33, 0}, {33, 40}, {73, 24}};
  const std::vector<std::int32_t> targets{0, 32, 33, -1, 96, 72, 50};
  const Floats logits = random_floats(kRows * kVocabulary, 1, 8.0f);
  const float scale = 0.25f;

  std::vector<Floats> held;
  Floats maximum(kRows, -std::numeric_limits<float>::infinity()), sum(kRows), target(kRows);
  for (const auto& [first, count] : slices) {
    Floats slice;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto begin = logits.begin() + r * kVocabulary + first;
      slice.insert(slice.end(), begin, begin + count);
    }
    held.push_back(slice);
    Floats local(kRows, 99.0f);
    logits_max(s, slice.data(), local.data(), kRows, count);
    for (std::size_t r = 0; r < kRows; ++r) {
      if (count == 0) {
        EXPECT_EQ(local[r], -std::numeric_limits<float>::infinity());
      }
      maximum[r] = std::max(maximum[r], local[r]);
    }
  }
  for (std::size_t i = 0; i < slices.size(); ++i) {
    Floats sums(kRows, 99.0f), target_logit(kRows, 99.0f);
    logits_sum(s, held[i].data(), targets.data(), maximum.data(), sums.data(), target_logit.data(), kRows,
               slices[i][1], slices[i][0]);
    for (std::size_t r = 0; r < kRows; ++r) {
      sum[r] += sums[r];
      target[r] += target_logit[r];
    }
  }
  Floats losses;
  for (std::size_t r = 0; r < kRows; ++r) losses.push_back(targets[r] < 0 ? 0 : std::log(sum[r]) - target[r]);
  const auto f = [&](const Doubles& x) { return reference(x, targets, kVocabulary); };
  expect_close(losses, f(widen(logits)), 1e-6, "loss");

  Floats gradient(logits.size(), 99.0f);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto [first, count] = slices[i];
    logits_backward(s, held[i].data(), targets.data(), sum.data(), scale, kRows, count, first);
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::copy_n(held[i].begin() + r * count, count, gradient.begin() + r * kVocabulary + first);
    }
  }
  expect_close(gradient, numeric_gradient(f, widen(logits), Floats(kRows, scale)), 1e-6, "gradient");
}

TEST(CrossEntropy, HugeLogitsAndNan) {
  Stream s(DeviceKind::cpu);
  Floats logits{3e38f, -3e38f, 1, 2}, maximum(2), sums(2), target(2);
  const std::vector<std::int32_t> targets{0, 1};
  logits_max(s, logits.data(), maximum.data(), 2, 2);
  EXPECT_EQ(maximum, (Floats{3e38f, 2}));
  logits_sum(s, logits.data(), targets.data(), maximum.data(), sums.data(), target.data(), 2, 2, 0);
  EXPECT_EQ(sums[0], 1.0f);
  EXPECT_EQ(target[0], 0.0f);

  // A NaN must reach the loss, wherever it stands.
  for (std::size_t place = 0; place < 20; ++place) {
    Floats row(20, 1.0f);
    row[place] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::int32_t> none{-1};
    logits_max(s, row.data(), maximum.data(), 1, 20);
    logits_sum(s, row.data(), none.data(), maximum.data(), sums.data(), target.data(), 1, 20, 0);
    EXPECT_TRUE(std::isnan(sums[0])) << place;
  }
}

}  // namespace
}  // namespace shardwright::kernels
