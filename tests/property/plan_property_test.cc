// Copy plans: complete, minimal, and the identity around any circle of layouts.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "reshard/plan.h"
#include "tests/property/label_pieces.h"
#include "tests/property/random_case.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;

TEST(PlanProperty, ThreeHopsAreTheIdentity) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    const ModelSpec model = random_model(random, 60'000);
    const Layout a = random_layout(random, model);
    const Layout b = random_layout(random, model);
    const Layout c = random_layout(random, model);
    const auto boxes_a = written_boxes(model, a);
    const auto boxes_b = written_boxes(model, b);
    const auto boxes_c = written_boxes(model, c);
    for (std::size_t t = 0; t < model.tensors.size(); ++t) {
      const LabelPieces begin = labelled_pieces(boxes_a[t], model.tensors[t].shape);
      const LabelPieces at_b = moved(begin, boxes_b[t]);
      ASSERT_EQ(at_b.data, labelled_pieces(boxes_b[t], model.tensors[t].shape).data) << "seed " << seed;
      const LabelPieces end = moved(moved(at_b, boxes_c[t]), boxes_a[t]);
      ASSERT_EQ(end.data, begin.data)
          << "seed " << seed << " " << a.string() << " " << b.string() << " " << c.string();
    }
  }
}

TEST(PlanProperty, EqualsTheProductOfAllPairs) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    const std::size_t dims = random.from(1, 3);
    const auto some = [&](std::uint64_t count) {  // any boxes, overlapping and empty ones too
      std::vector<Box> boxes(random.from(0, count));
      for (Box& b : boxes) {
        for (std::size_t d = 0; d < dims; ++d) {
          b.offset.push_back(random.from(0, 12));
          b.shape.push_back(random.from(0, 6));
        }
      }
      return boxes;
    };
    const std::vector<Box> sources = some(20);
    const std::vector<Box> targets = some(20);
    std::vector<Copy> expected;
    for (std::uint32_t t = 0; t < targets.size(); ++t) {
      for (std::uint32_t s = 0; s < sources.size(); ++s) {
        if (targets[t].empty() || sources[s].empty()) continue;
        if (const auto region = ckpt::intersect(targets[t], sources[s])) expected.push_back({s, t, *region});
      }
    }
    const std::vector<Copy> plan = overlap(targets, sources);
    ASSERT_EQ(plan.size(), expected.size()) << "seed " << seed;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      ASSERT_EQ(plan[i].from, expected[i].from);
      ASSERT_EQ(plan[i].to, expected[i].to);
      ASSERT_EQ(plan[i].region, expected[i].region);
    }
  }
}

// 2000 tensors of a wide model from 64 to 128 ranks, and from 128 to 256.
TEST(PlanProperty, B136_PlanningGrowsWithTheCopies) {
  const ModelSpec model =
      build_model({.layers = 125, .hidden = 1024, .heads = 16, .vocab = 50257, .seq_len = 1024});
  ASSERT_GE(model.tensors.size(), 2000u);
  const auto plan = [&](const char* from, const char* to) {
    const auto start = std::chrono::steady_clock::now();
    const auto sources = written_boxes(model, parse_layout(from));
    const auto targets = written_boxes(model, parse_layout(to));
    std::uint64_t copies = 0;
    std::uint64_t boxes = 0;
    for (std::size_t t = 0; t < sources.size(); ++t) {
      copies += overlap(targets[t], sources[t]).size();
      boxes += sources[t].size() + targets[t].size();
    }
    // Cuts along rows alone meet at most once a boundary; a TP degree that changes doubles that for column
    // cuts.
    EXPECT_LE(copies, 2 * boxes) << from << " -> " << to;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s -> %s: %.2f s\n", from, to, seconds.count());
    return copies;
  };
  const std::uint64_t copies = plan("t4d16z1", "t8d16z1");
  EXPECT_LT(plan("t8d16z1", "t8d32z1"), 5 * copies / 2);
}

}  // namespace
}  // namespace shardwright::reshard
