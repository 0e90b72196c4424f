#include "reshard/plan.h"

#include <gtest/gtest.h>

namespace shardwright::reshard {
namespace {

using ckpt::Box;

void expect_plan(const std::vector<Copy>& plan, const std::vector<Copy>& expected) {
  ASSERT_EQ(plan.size(), expected.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].from, expected[i].from) << i;
    EXPECT_EQ(plan[i].to, expected[i].to) << i;
    EXPECT_EQ(plan[i].region, expected[i].region) << i;
  }
}

TEST(Overlap, OrderedByTargetThenSource) {
  // Sources out of order on purpose, and an empty one.
  const std::vector<Box> sources{{{6}, {4}}, {{0}, {3}}, {{3}, {0}}, {{3}, {3}}};
  const std::vector<Box> targets{{{5}, {5}}, {{0}, {5}}, {{2}, {0}}};
  expect_plan(overlap(targets, sources),
              {{0, 0, {{6}, {4}}}, {3, 0, {{5}, {1}}}, {1, 1, {{0}, {3}}}, {3, 1, {{3}, {2}}}});
}

TEST(Overlap, ColumnsAndRows) {
  // Two columns cut at different rows; a target across the corner.
  const std::vector<Box> sources{{{0, 0}, {2, 4}}, {{2, 0}, {4, 4}}, {{0, 4}, {5, 3}}, {{5, 4}, {1, 3}}};
  const std::vector<Box> targets{{{1, 3}, {3, 2}}};
  expect_plan(overlap(targets, sources),
              {{0, 0, {{1, 3}, {1, 1}}}, {1, 0, {{2, 3}, {2, 1}}}, {2, 0, {{1, 4}, {3, 1}}}});
}

TEST(Overlap, ScalarsAndNothing) {
  expect_plan(overlap(std::vector<Box>{{{}, {}}}, std::vector<Box>{{{}, {}}}), {{0, 0, {{}, {}}}});
  EXPECT_TRUE(overlap({}, std::vector<Box>{{{0}, {3}}}).empty());
  EXPECT_TRUE(overlap(std::vector<Box>{{{0}, {3}}}, {}).empty());
}

}  // namespace
}  // namespace shardwright::reshard
