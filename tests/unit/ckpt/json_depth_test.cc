#include "ckpt/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwright::ckpt {
namespace {

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonDepth, CountsWhatIsOpenAtOnce) {
  EXPECT_FALSE(nests_too_deep(""));
  EXPECT_FALSE(nests_too_deep(nested(kMaxJsonDepth)));
  EXPECT_TRUE(nests_too_deep(nested(kMaxJsonDepth + 1)));
  std::string beside;
  for (int i = 0; i < 1000; ++i) beside += R"({"a":[1]},)";
  EXPECT_FALSE(nests_too_deep("[" + beside + "0]"));
  EXPECT_TRUE(nests_too_deep(std::string(1 << 20, '{')));
}

TEST(JsonDepth, TextsAreNoStructure) {
  const std::string brackets(kMaxJsonDepth + 1, '[');
  EXPECT_FALSE(nests_too_deep("\"" + brackets + "\""));
  EXPECT_FALSE(nests_too_deep(R"("a\")" + brackets + "\""));
  EXPECT_TRUE(nests_too_deep(R"("a\\")" + brackets));
  EXPECT_FALSE(nests_too_deep("\"\\"));
  EXPECT_FALSE(nests_too_deep("]]]]" + nested(3)));
}

}  // namespace
}  // namespace shardwright::ckpt
