#include "ckpt/box.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace shardwright::ckpt {
namespace {

TEST(Box, CountsAndTexts) {
  EXPECT_EQ(element_count({3, 5, 7}), 105u);
  EXPECT_EQ(element_count({}), 1u);
  EXPECT_EQ(to_string(Dims{3, 64}), "[3, 64]");
  EXPECT_EQ(to_string(Dims{}), "[]");
  EXPECT_EQ(to_string(Box{{0, 8}, {3, 8}}), "[0:3, 8:16]");
  EXPECT_TRUE((Box{{2, 0}, {0, 5}}).empty());
}

TEST(Box, CheckedCountRefusesOverflow) {
  const std::uint64_t half = 1ull << 32;
  EXPECT_EQ(checked_element_count({half, half - 1}), half * (half - 1));
  EXPECT_FALSE(checked_element_count({half, half}).has_value());
  EXPECT_EQ(checked_element_count({half, half, 0}), 0u);
}

TEST(Box, IntersectIsMaxAndMin) {
  const Box a{{0, 4}, {7, 5}}, b{{5, 0}, {10, 6}};
  ASSERT_TRUE(intersect(a, b).has_value());
  EXPECT_EQ(*intersect(a, b), (Box{{5, 4}, {2, 2}}));
  EXPECT_FALSE(intersect(a, Box{{7, 4}, {1, 1}}).has_value());  // touching is not sharing
  EXPECT_FALSE(intersect(a, Box{{3, 5}, {0, 2}}).has_value());
  EXPECT_EQ(*intersect(Box{}, Box{}), Box{});  // scalars
}

TEST(Box, Contains) {
  const Box outer{{2, 3}, {5, 7}};
  EXPECT_TRUE(contains(outer, outer));
  EXPECT_TRUE(contains(outer, Box{{6, 9}, {1, 1}}));
  EXPECT_FALSE(contains(outer, Box{{6, 9}, {2, 1}}));
  EXPECT_FALSE(contains(outer, Box{{1, 3}, {1, 1}}));
  EXPECT_TRUE(contains(outer, Box{{90, 90}, {0, 1}}));
}

// Every region of a small 3-D tensor between two boxes that hold it differently, against element-wise
// copying.
TEST(Box, CopyRegionMatchesElementwise) {
  const Box src_box{{1, 0, 2}, {3, 5, 4}}, dst_box{{0, 0, 0}, {5, 5, 7}};
  std::vector<std::uint16_t> src(src_box.elements());
  std::iota(src.begin(), src.end(), std::uint16_t{1});
  const auto at = [](const Box& box, std::uint64_t i, std::uint64_t j, std::uint64_t k) {
    return ((i - box.offset[0]) * box.shape[1] + (j - box.offset[1])) * box.shape[2] + (k - box.offset[2]);
  };
  int regions = 0;
  for (std::uint64_t i = 1; i < 4; ++i)
    for (std::uint64_t j = 0; j < 5; ++j)
      for (std::uint64_t k = 2; k < 6; ++k)
        for (std::uint64_t ni = 0; i + ni <= 4; ++ni)
          for (std::uint64_t nj = 0; j + nj <= 5; ++nj)
            for (std::uint64_t nk = 0; k + nk <= 6; ++nk, ++regions) {
              const Box region{{i, j, k}, {ni, nj, nk}};
              std::vector<std::uint16_t> got(dst_box.elements()), expected(dst_box.elements());
              for (std::uint64_t x = i; x < i + ni; ++x)
                for (std::uint64_t y = j; y < j + nj; ++y)
                  for (std::uint64_t z = k; z < k + nk; ++z)
                    expected[at(dst_box, x, y, z)] = src[at(src_box, x, y, z)];
              copy_region(reinterpret_cast<const std::byte*>(src.data()), src_box,
                          reinterpret_cast<std::byte*>(got.data()), dst_box, region, 2);
              ASSERT_EQ(got, expected) << to_string(region);
            }
  EXPECT_GT(regions, 1000);
}

TEST(Box, CopyRegionOfScalar) {
  const double value = 2.5;
  double copy = 0;
  copy_region(reinterpret_cast<const std::byte*>(&value), Box{}, reinterpret_cast<std::byte*>(&copy), Box{},
              Box{}, 8);
  EXPECT_EQ(copy, 2.5);
}

TEST(Box, DenseStart) {
  const Box outer{{2, 10, 0}, {4, 3, 5}};
  EXPECT_EQ(dense_start(outer, outer), 0u);
  EXPECT_EQ(dense_start(outer, {{3, 10, 0}, {2, 3, 5}}), 15u);
  EXPECT_EQ(dense_start(outer, {{3, 11, 0}, {1, 2, 5}}), 20u);
  EXPECT_EQ(dense_start(outer, {{3, 12, 2}, {1, 1, 3}}), 27u);
  EXPECT_EQ(dense_start(outer, {{3, 12, 2}, {1, 1, 1}}), 27u);
  EXPECT_EQ(dense_start(outer, {{3, 11, 0}, {2, 2, 5}}), std::nullopt);
  EXPECT_EQ(dense_start(outer, {{2, 10, 1}, {4, 3, 4}}), std::nullopt);
  EXPECT_EQ(dense_start(outer, {{2, 10, 1}, {1, 2, 4}}), std::nullopt);
  EXPECT_EQ(dense_start({}, {}), 0u) << "a scalar";
}

}  // namespace
}  // namespace shardwright::ckpt
