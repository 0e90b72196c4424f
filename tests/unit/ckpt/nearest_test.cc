#include "ckpt/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace shardwright::ckpt {
namespace {

TEST(Nearest, CountsInsertionsDeletionsReplacementsAndSwaps) {
  const std::vector<std::string> known = {"step.begin", "step.forward", "save.begin", "retire"};
  EXPECT_EQ(nearest("step.bgein", known), "step.begin");
  EXPECT_EQ(nearest("stp.begin", known), "step.begin");
  EXPECT_EQ(nearest("save.beginn", known), "save.begin");
  EXPECT_EQ(nearest("rotire", known), "retire");
}

TEST(Nearest, TheFirstOfEqualsAndNothingOfNothing) {
  EXPECT_EQ(nearest("c", std::vector<std::string>{"a", "b"}), "a");
  EXPECT_EQ(nearest("", std::vector<std::string>{"abc", "d"}), "d");
  EXPECT_EQ(nearest("a", {}), "");
}

std::size_t by_whole_table(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] =
          std::min({d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), d[i - 1][j] + 1, d[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// Comparisons are given up early; which word wins does not change.
TEST(Nearest, AgreesWithWholeComparisons) {
  std::mt19937 random(1);
  const auto word = [&] {
    std::string letters(random() % 7, 'a');
    for (char& letter : letters) letter = static_cast<char>('a' + random() % 3);
    return letters;
  };
  for (int i = 0; i < 20000; ++i) {
    const std::string typed = word();
    const std::vector<std::string> known = {word(), word(), word(), word(), word()};
    const auto best = std::ranges::min_element(
        known, {}, [&](const std::string& candidate) { return by_whole_table(typed, candidate); });
    ASSERT_EQ(nearest(typed, known), *best) << typed;
  }
}

}  // namespace
}  // namespace shardwright::ckpt
