#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

std::vector<float> slopes(std::int64_t heads) {
  std::vector<float> all(static_cast<std::size_t>(heads));
  Stream s(DeviceKind::cpu);
  alibi_slopes(s, all.data(), 0, heads, heads);
  return all;
}

// Exponents of 2 that slopes have, negated.
std::vector<float> exponents(std::int64_t heads) {
  std::vector<float> powers = slopes(heads);
  for (float& slope : powers) slope = -std::log2(slope);
  return powers;
}

TEST(AlibiSlopes, PowersOfTwo) {
  EXPECT_EQ(slopes(8), (std::vector<float>{1 / 2.f, 1 / 4.f, 1 / 8.f, 1 / 16.f, 1 / 32.f, 1 / 64.f, 1 / 128.f,
                                           1 / 256.f}));
  EXPECT_EQ(slopes(1), std::vector<float>{1 / 256.f});
  EXPECT_EQ(exponents(4), (std::vector<float>{2, 4, 6, 8}));
  const std::vector<float> sixteen = exponents(16);
  for (std::size_t h = 0; h < 16; ++h) EXPECT_FLOAT_EQ(sixteen[h], 0.5f * static_cast<float>(h + 1));
}

// Those of 8 heads, and then every second one of 16.
TEST(AlibiSlopes, Twelve) {
  const std::vector<float> want{1, 2, 3, 4, 5, 6, 7, 8, 0.5f, 1.5f, 2.5f, 3.5f};
  const std::vector<float> found = exponents(12);
  ASSERT_EQ(found.size(), want.size());
  for (std::size_t h = 0; h < want.size(); ++h) EXPECT_FLOAT_EQ(found[h], want[h]) << h;
}

// BLOOM-176B's: those of 64 heads, and 48 of 128. The numbers are those of the authors' get_slopes, in
// Python.
TEST(AlibiSlopes, HundredAndTwelve) {
  const std::vector<float> all = slopes(112);
  EXPECT_FLOAT_EQ(all[0], 0.9170040432046712f);
  EXPECT_FLOAT_EQ(all[1], 0.8408964152537145f);
  EXPECT_FLOAT_EQ(all[63], 0.00390625f);
  EXPECT_FLOAT_EQ(all[64], 0.9576032806985737f);
  EXPECT_FLOAT_EQ(all[65], 0.8781260801866498f);
  EXPECT_FLOAT_EQ(all[111], 0.016316777850428427f);
}

TEST(AlibiSlopes, OfSomeHeadsAreThoseOfAll) {
  for (const std::int64_t heads : {5, 6, 8, 12}) {
    const std::vector<float> all = slopes(heads);
    std::vector<float> joined;
    for (std::int64_t first = 0; first < heads; first += 4) {
      std::vector<float> part(static_cast<std::size_t>(std::min<std::int64_t>(4, heads - first)));
      Stream s(DeviceKind::cpu);
      alibi_slopes(s, part.data(), first, std::ssize(part), heads);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, all) << heads;
  }
}

}  // namespace
}  // namespace shardwright::kernels
