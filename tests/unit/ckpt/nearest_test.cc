#include "ckpt/nearest.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shardwright::ckpt
