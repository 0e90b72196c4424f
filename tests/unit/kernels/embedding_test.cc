#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

// Vocabulary 97 cut in slices, an empty one among them; their forward outputs add up to the whole table's.
TEST(Embedding, SlicesAddUpAndBackwardAccumulates) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kVocabulary = 97, kRows = 203;
  for (const std::int64_t channels : {1, 12, 35}) {
    const Floats table = random_floats(kVocabulary * channels, 1), dy = random_floats(kRows * channels, 2);
    std::vector<std::int32_t> tokens;
    for (std::int64_t r = 0; r < kRows; ++r) tokens.push_back(static_cast<std::int32_t>(r * r % kVocabulary));
    Floats sum(dy.size()), gradient(table.size(), 0.5f);
    for (const auto& [first, held] : {std::array<std::int64_t, 2>{0, 33}, {33, 0}, {33, 33}, {66, 31}}) {
      Floats y(dy.size(), 99.0f);
      embedding_forward(s, tokens.data(), table.data() + first * channels, y.data(), kRows, channels, first,
                        held);
      for (std::size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
      embedding_backward(s, tokens.data(), dy.data(), gradient.data() + first * channels, kRows, channels,
                         first, held);
    }
    Doubles want(table.size(), 0.5);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const auto at = static_cast<std::size_t>(r * channels + c);
        const auto from = static_cast<std::size_t>(tokens[static_cast<std::size_t>(r)] * channels + c);
        ASSERT_EQ(sum[at], table[from]);
        want[from] += static_cast<double>(dy[at]);
      }
    }
    expect_close(gradient, want, 1e-6, "gradient");
  }
}

// Rows from the start of a sequence and from within one, as ranks of a sequence-parallel group hold them.
TEST(Embedding, PositionsForwardAndBackward) {
  Stream s(DeviceKind::cpu);
  for (const auto& [first, rows, positions, channels] : {std::array<std::int64_t, 4>{0, 1, 1, 12},
                                                         {0, 21, 7, 5},
                                                         {5, 4, 7, 5},
                                                         {3, 11, 7, 5},
                                                         {20, 17, 7, 1},
                                                         {7, 0, 7, 5},
                                                         {3, 0, 7, 5},
                                                         {0, 260, 130, 300},
                                                         {129, 3, 130, 300}}) {
    const Floats table = random_floats(positions * channels, 1), dy = random_floats(rows * channels, 2);
    Floats y = dy, gradient(table.size(), 0.5f);
    position_forward(s, table.data(), y.data(), first, rows, positions, channels);
    position_backward(s, dy.data(), gradient.data(), first, rows, positions, channels);
    Doubles want(table.size(), 0.5);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t at = (i + static_cast<std::size_t>(first * channels)) % table.size();
      ASSERT_EQ(y[i], dy[i] + table[at]);
      want[at] += static_cast<double>(dy[i]);
    }
    expect_close(gradient, want, 1e-6, "gradient");
  }
}

TEST(Embedding, PositionsBackwardHasTheSameBitsForAnyNumberOfThreads) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kRows = 777, kPositions = 130, kChannels = 300;
  const Floats dy = random_floats(kRows * kChannels, 1);
  const int before = threads();
  Floats first;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    Floats gradient(kPositions * kChannels);
    position_backward(s, dy.data(), gradient.data(), 57, kRows, kPositions, kChannels);
    if (first.empty()) first = gradient;
    EXPECT_EQ(gradient, first) << count;
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
