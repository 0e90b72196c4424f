#include "ckpt/tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>
#include <vector>

namespace shardwright::ckpt {
namespace {

std::optional<Miscount> miscount_of(const std::vector<Box>& boxes, const Dims& shape) {
  std::vector<const Box*> pointers;
  for (const Box& b : boxes) pointers.push_back(&b);
  return first_miscount(pointers, shape);
}

/// The same, by asking each box for each element.
std::optional<Miscount> counted_one_by_one(const std::vector<Box>& boxes, const Dims& shape) {
  Dims at = Dims::filled(shape.size(), 0);
  for (;;) {
    const Box element{at, Dims::filled(shape.size(), 1)};
    const auto held = static_cast<std::uint64_t>(
        std::count_if(boxes.begin(), boxes.end(), [&](const Box& b) { return contains(b, element); }));
    if (held != 1) return Miscount{at, held};
    std::size_t d = shape.size();
    for (; d > 0 && ++at[d - 1] == shape[d - 1]; --d) at[d - 1] = 0;
    if (d == 0) return std::nullopt;
  }
}

void expect_same(const std::vector<Box>& boxes, const Dims& shape) {
  const auto fast = miscount_of(boxes, shape), slow = counted_one_by_one(boxes, shape);
  ASSERT_EQ(fast.has_value(), slow.has_value()) << to_string(shape);
  if (!fast) return;
  ASSERT_EQ(fast->element, slow->element);
  ASSERT_EQ(fast->boxes, slow->boxes);
}

using Random = std::mt19937_64;

std::uint64_t below(Random& random, std::uint64_t end) { return random() % end; }

/// Cuts a box of `boxes` in two, if it can be.
void cut(std::vector<Box>& boxes, Random& random) {
  Box& low = boxes[below(random, boxes.size())];
  if (low.shape.empty()) return;
  const std::size_t d = below(random, low.shape.size());
  if (low.shape[d] < 2) return;
  Box high = low;
  const std::uint64_t at = 1 + below(random, low.shape[d] - 1);
  low.shape[d] = at;
  high.offset[d] += at;
  high.shape[d] -= at;
  boxes.push_back(high);
}

/// Moves a box, or one of its sides, to somewhere inside the shape.
void disturb(Box& box, const Dims& shape, Random& random) {
  const std::size_t d = below(random, shape.size());
  box.offset[d] = below(random, shape[d]);
  box.shape[d] = 1 + below(random, shape[d] - box.offset[d]);
}

TEST(Tiling, SaysWhatCountingEachElementSays) {
  Random random(1);
  int tiled = 0, uncovered = 0, shared = 0;
  for (int n = 0; n < 20'000; ++n) {
    Dims shape;
    for (std::uint64_t dims = below(random, 5); dims > 0; --dims) shape.push_back(1 + below(random, 5));
    std::vector<Box> boxes = {Box::whole(shape)};
    for (std::uint64_t cuts = below(random, 12); cuts > 0; --cuts) cut(boxes, random);
    switch (below(random, 4)) {
      case 0:
        break;
      case 1:
        boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(below(random, boxes.size())));
        break;
      case 2:
        boxes.push_back(boxes[below(random, boxes.size())]);
        break;
      case 3:
        if (!shape.empty()) disturb(boxes[below(random, boxes.size())], shape, random);
    }
    std::shuffle(boxes.begin(), boxes.end(), random);
    ASSERT_NO_FATAL_FAILURE(expect_same(boxes, shape));
    const auto found = miscount_of(boxes, shape);
    ++(!found ? tiled : found->boxes == 0 ? uncovered : shared);
  }
  EXPECT_GT(std::min({tiled, uncovered, shared}), 2000);
}

TEST(Tiling, EightDimensions) {
  Random random(2);
  const Dims shape = {2, 1, 3, 2, 2, 1, 3, 2};
  for (int n = 0; n < 200; ++n) {
    std::vector<Box> boxes = {Box::whole(shape)};
    for (int cuts = 0; cuts < 20; ++cuts) cut(boxes, random);
    ASSERT_EQ(miscount_of(boxes, shape), std::nullopt);
    disturb(boxes[below(random, boxes.size())], shape, random);
    ASSERT_NO_FATAL_FAILURE(expect_same(boxes, shape));
  }
}

/// A tiling, and what becomes of it with one box less and one box more, is judged in no time: comparing all
/// boxes with all would take minutes.
void expect_quick(std::vector<Box> boxes, const Dims& shape) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(miscount_of(boxes, shape), std::nullopt);
  const Box last = boxes.back();
  boxes.pop_back();
  const auto uncovered = miscount_of(boxes, shape);
  ASSERT_TRUE(uncovered);
  EXPECT_EQ(uncovered->element, last.offset);
  EXPECT_EQ(uncovered->boxes, 0u);
  boxes.insert(boxes.end(), 2, last);
  const auto shared = miscount_of(boxes, shape);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->element, last.offset);
  EXPECT_EQ(shared->boxes, 2u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Tiling, ManyBoxesThatAreAllOpenAtOnceAreQuick) {
  constexpr std::uint64_t n = 50'000;
  std::vector<Box> stairs;  // wherever a line is drawn, half of them lie on it
  for (std::uint64_t k = 0; k < n; ++k) {
    stairs.push_back({{0, k}, {k + 1, 1}});
    stairs.push_back({{k + 1, k}, {n - k, 1}});
  }
  expect_quick(stairs, {n + 1, n});
}

TEST(Tiling, ManyBoxesOfEightDimensionsAreQuick) {
  Random random(3);
  const Dims shape = Dims::filled(8, 200);
  std::vector<Box> boxes = {Box::whole(shape)};
  while (boxes.size() < 100'000) cut(boxes, random);
  expect_quick(boxes, shape);
}

TEST(Tiling, ExtentsUpTo64Bits) {
  const std::uint64_t most = ~0ull;
  EXPECT_EQ(miscount_of({{{0}, {most - 1}}, {{most - 1}, {1}}}, {most}), std::nullopt);
  const auto found = miscount_of({{{0}, {most - 1}}, {{most - 2}, {2}}}, {most});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->element, (Dims{most - 2}));
  EXPECT_EQ(found->boxes, 2u);
}

}  // namespace
}  // namespace shardwright::ckpt
