// What must hold of placement for every model and layout.
#include <gtest/gtest.h>

#include <map>

#include "reshard/plan.h"
#include "tests/property/random_case.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;
using ckpt::Dims;

// True if the boxes are disjoint and their elements add up to those of `whole`, which contains them: each is
// covered once.
::testing::AssertionResult partition(const std::vector<Box>& boxes, const Box& whole) {
  std::uint64_t elements = 0;
  std::size_t filled = 0;
  for (const Box& b : boxes) {
    if (!ckpt::contains(whole, b))
      return ::testing::AssertionFailure() << to_string(b) << " leaves " << to_string(whole);
    elements += b.elements();
    filled += b.empty() ? 0 : 1;
  }
  if (elements != whole.elements()) {
    return ::testing::AssertionFailure() << elements << " elements of " << whole.elements();
  }
  // Disjoint boxes meet themselves only.
  if (overlap(boxes, boxes).size() != filled) return ::testing::AssertionFailure() << "boxes overlap";
  return ::testing::AssertionSuccess();
}

std::string describe(const ModelSpec& model, const Layout& layout) {
  std::string text = layout.string() + " layers " + std::to_string(model.config.layers);
  for (const TensorSpec& t : model.tensors) {
    text += "; " + to_string(t.shape) + " cut " + std::to_string(t.tp.dimension) + " by " +
            std::to_string(t.tp.units);
  }
  return text;
}

void check_case(const ModelSpec& model, const Layout& layout) {
  const auto all = all_placements(model, layout);
  struct Holder {
    int rank;
    const Placed* placed;
  };
  const std::vector<RankSizes> sizes = rank_sizes(model, layout);
  ASSERT_EQ(sizes.size(), all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    RankSizes sum;
    for (const Placed& p : all[rank])
      sum = {sum.holds + p.holds.elements(), sum.piece + p.piece.elements(),
             sum.writes + p.writes.elements()};
    ASSERT_EQ(sizes[rank].holds, sum.holds) << "rank " << rank << ", " << describe(model, layout);
    ASSERT_EQ(sizes[rank].piece, sum.piece) << "rank " << rank << ", " << describe(model, layout);
    ASSERT_EQ(sizes[rank].writes, sum.writes) << "rank " << rank << ", " << describe(model, layout);
  }
  std::vector<std::vector<Holder>> holders_of(model.tensors.size());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (const Placed& p : all[static_cast<std::size_t>(rank)]) holders_of[p.tensor].push_back({rank, &p});
  }
  const auto held_by = [&](std::uint32_t t, int rank) {
    return std::any_of(holders_of[t].begin(), holders_of[t].end(),
                       [&](const Holder& h) { return h.rank == rank; });
  };
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    const TensorSpec& tensor = model.tensors[t];
    std::vector<Box> writes;
    for (const auto& [rank, p] : holders_of[t]) {
      writes.push_back(p->writes);
      ASSERT_TRUE(ckpt::contains(p->holds, p->piece));
      ASSERT_TRUE(ckpt::contains(p->piece, p->writes));
      ASSERT_EQ(optimizer_box(*p, layout), layout.zero == 0 ? p->holds : p->piece);

      // dp pieces of the box partition it, in order, and this rank's is the one of its dp index.
      const std::vector<Box> pieces = dp_pieces(model, layout, rank, t);
      ASSERT_EQ(static_cast<int>(pieces.size()), layout.dp);
      ASSERT_TRUE(partition(pieces, p->holds));
      ASSERT_EQ(pieces[static_cast<std::size_t>(axis_index(layout, rank, Axis::dp))], p->piece);
      std::uint64_t row = p->holds.offset[0];
      for (const Box& piece : pieces) {
        ASSERT_EQ(piece.offset[0], row) << "pieces in order, no hole";
        row = piece.end(0);
      }

      const std::vector<int> same = holders(model, layout, rank, t);
      ASSERT_EQ(same.size(), p->copies);
      ASSERT_EQ(std::count(same.begin(), same.end(), rank), 1);
      const std::vector<int> line = axis_group(layout, rank, Axis::pp);
      ASSERT_EQ(std::count_if(line.begin(), line.end(), [&](int r) { return held_by(t, r); }),
                p->stage_copies);
      if (p->holds.empty()) continue;  // units not shared, and fewer than ranks

      // `copies` ranks of the same dp index hold exactly the same; together they write the piece.
      std::vector<int> copies;
      std::vector<Box> shared;
      for (const auto& [other, q] : holders_of[t]) {
        if (axis_index(layout, other, Axis::dp) != axis_index(layout, rank, Axis::dp)) continue;
        if (q->holds != p->holds) continue;
        copies.push_back(other);
        shared.push_back(q->writes);
        ASSERT_EQ(q->piece, p->piece) << "holders agree";
        ASSERT_EQ(q->copies, p->copies);
      }
      std::vector<int> sorted = same;
      std::sort(sorted.begin(), sorted.end());
      ASSERT_EQ(sorted, copies);
      ASSERT_TRUE(partition(shared, p->piece));

      // The boxes in which all that hold the same write it, at any dp index.
      const std::vector<Box> boxes = written_boxes(model, layout, rank, t);
      ASSERT_TRUE(partition(boxes, p->holds));
      for (const auto& [other, q] : holders_of[t])
        if (q->holds == p->holds && !q->writes.empty()) {
          ASSERT_EQ(std::count(boxes.begin(), boxes.end(), q->writes), 1) << "rank " << other;
        }

      // Chunks fit the writer box and a mebibyte.
      if (p->writes.empty()) {
        ASSERT_TRUE(p->chunk.empty());
        continue;
      }
      ASSERT_EQ(p->chunk.size(), tensor.shape.size());
      ASSERT_LE(ckpt::element_count(p->chunk) * 4, 1u << 20);
      for (std::size_t d = 0; d < p->chunk.size(); ++d) {
        ASSERT_GE(p->chunk[d], 1u);
        ASSERT_LE(p->chunk[d], p->writes.shape[d]);
      }
    }
    ASSERT_TRUE(partition(writes, Box::whole(tensor.shape))) << "each element has exactly one writer";
  }
}

TEST(PlacementProperty, SmallAndMediumTensors) {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    Random random(seed);
    const ModelSpec model = random_model(random, 400'000);
    const Layout layout = random_layout(random, model);
    ASSERT_NO_FATAL_FAILURE(check_case(model, layout)) << "seed " << seed << ": " << describe(model, layout);
  }
}

TEST(PlacementProperty, LargeTensorsCutOnTileRows) {
  for (std::uint64_t seed = 1; seed <= 700; ++seed) {
    Random random(seed + 1'000'000);
    const ModelSpec model = random_model(random, std::uint64_t{1} << 34);
    const Layout layout = random_layout(random, model);
    ASSERT_NO_FATAL_FAILURE(check_case(model, layout)) << "seed " << seed << ": " << describe(model, layout);
  }
}

// Where a box has at least 4 tile rows for each piece, the cuts lie on tile rows, so the chunks of the tiles
// survive a change of layout.
TEST(PlacementProperty, LargeBoxesAreCutOnTileRows) {
  int cut_on_tiles = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    const Dims shape{random.from(1, 20000), random.from(1, 40000)};
    const std::uint64_t first = random.from(0, shape[0] - 1);
    const Box box{{first, 0}, {random.from(1, shape[0] - first), shape[1]}};
    const int pieces = random.number(2, 9);
    const std::uint64_t tile_rows = tile(shape)[0];
    const bool large = box.shape[0] >= 4 * static_cast<std::uint64_t>(pieces) * tile_rows;
    const std::vector<Box> boxes = cut(box, shape, pieces, static_cast<std::uint32_t>(seed));
    ASSERT_TRUE(partition(boxes, box));
    if (!large) continue;
    ++cut_on_tiles;
    for (const Box& b : boxes) {
      ASSERT_TRUE((b.offset[0] - box.offset[0]) % tile_rows == 0);
      ASSERT_GE(b.elements() * static_cast<std::uint64_t>(pieces) * 3, box.elements() * 2)
          << "no piece is far below the mean";
    }
  }
  EXPECT_GT(cut_on_tiles, 200);
}

TEST(PlacementProperty, B26_PiecesOfEverySizeAddUp) {
  for (std::uint64_t size = 1; size <= 5000; ++size) {
    for (int d = 1; d <= 33; d += size % 97 == 0 ? 1 : 8) {
      for (const std::uint64_t base :
           {std::uint64_t{0}, std::uint64_t{16384}}) {  // whole to one, and really cut
        const Dims shape{base + size};
        const std::vector<Box> boxes = cut(Box::whole(shape), shape, d, static_cast<std::uint32_t>(size));
        std::uint64_t end = 0;
        for (const Box& b : boxes) {
          ASSERT_EQ(b.offset[0], end);
          end = b.end(0);
          const std::uint64_t fair = shape[0] / static_cast<std::uint64_t>(d) + 1;
          ASSERT_LE(b.shape[0], base > 0 ? fair : shape[0]);
        }
        ASSERT_EQ(end, shape[0]) << "size " << shape[0] << " d " << d;
      }
    }
  }
}

// L1 of the bug log, as its table of Llama tensors would be: no padding is ever part of a piece, whatever dp
// was and becomes.
ModelSpec l1() {
  ModelSpec model;
  model.config.layers = 6;
  const auto add = [&](std::string name, Dims shape, TpCut tp, std::int64_t place) {
    TensorSpec t;
    t.name = std::move(name);
    t.shape = shape;
    t.tp = tp;
    t.places = {place};
    model.tensors.push_back(std::move(t));
  };
  add("embed", {203, 96}, {0, 203}, -1);
  for (std::int64_t layer = 0; layer < 6; ++layer) {
    const std::string in = "layers." + std::to_string(layer) + ".";
    add(in + "q", {96, 96}, {0, 12}, layer);
    add(in + "k", {32, 96}, {0, 4}, layer);
    add(in + "v", {32, 96}, {0, 4}, layer);
    add(in + "o", {96, 96}, {1, 12}, layer);
    add(in + "gate", {176, 96}, {0, 176}, layer);
    add(in + "up", {176, 96}, {0, 176}, layer);
    add(in + "down", {96, 176}, {1, 176}, layer);
    add(in + "norm", {96}, {}, layer);
  }
  add("norm", {96}, {}, 6);
  add("lm_head", {203, 96}, {0, 203}, 6);
  return model;
}

TEST(PlacementProperty, B25_AnyDataParallelDegree) {
  for (int dp : {1, 3, 4, 5, 6, 7, 24}) {
    for (int zero : {0, 1, 3})
      ASSERT_NO_FATAL_FAILURE(check_case(l1(), Layout{.dp = dp, .zero = zero})) << dp;
  }
}

TEST(PlacementProperty, B29_NoPieceRunsPastTheTensor) {
  ModelSpec g1 = build_model({.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 97, .seq_len = 32});
  ASSERT_NO_FATAL_FAILURE(check_case(g1, parse_layout("p2d8z1")));
}

TEST(PlacementProperty, B06_GateAndUpAreCutApart) {
  const ModelSpec model = l1();
  for (const char* layout : {"d8z3", "d1", "d2", "d3", "t4d2", "t2d5"}) {
    const auto boxes = written_boxes(model, parse_layout(layout));
    for (const char* name : {"layers.3.gate", "layers.3.up"}) {
      const auto t = static_cast<std::size_t>(model.find(name));
      EXPECT_TRUE(partition(boxes[t], Box::whole(model.tensors[t].shape))) << layout << " " << name;
    }
  }
}

TEST(PlacementProperty, B34_RanksOfAStageListTheSameTensors) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const ModelSpec model = random_model(random, 400'000);
    const Layout layout = random_layout(random, model);
    const auto all = all_placements(model, layout);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const int first = axis_index(layout, rank, Axis::pp) * layout.tp * layout.dp;
      const auto& mine = all[static_cast<std::size_t>(rank)];
      const auto& theirs = all[static_cast<std::size_t>(first)];
      ASSERT_EQ(mine.size(), theirs.size());
      for (std::size_t i = 0; i < mine.size(); ++i) ASSERT_EQ(mine[i].tensor, theirs[i].tensor);
    }
  }
}

TEST(PlacementProperty, B17_EveryLayerIsHeldOnce) {
  // U1 of the bug log: 7 layers.
  const ModelSpec model =
      build_model({.layers = 7, .hidden = 40, .heads = 5, .ffn = 105, .vocab = 131, .seq_len = 32});
  for (const char* text : {"p1", "p2", "p3", "p4", "p7", "p2v3", "p3v2"}) {
    const Layout layout = parse_layout(text);
    std::map<std::int64_t, int> stages_of_layer;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::map<std::int64_t, int> here;
      for (const Placed& p : placement(model, layout, rank)) ++here[model.tensors[p.tensor].layer()];
      for (const auto& [layer, tensors] : here) {
        if (layer >= 0 && layer < 7) {
          ++stages_of_layer[layer];
          EXPECT_EQ(tensors, 16) << text;
        }
      }
    }
    EXPECT_EQ(stages_of_layer.size(), 7u) << text;
    for (const auto& [layer, stages] : stages_of_layer) EXPECT_EQ(stages, 1) << text << " layer " << layer;
    ASSERT_NO_FATAL_FAILURE(check_case(model, layout));
  }
}

TEST(PlacementProperty, B137_WritingIsSpread) {
  // 50 M parameters.
  const ModelSpec model =
      build_model({.layers = 12, .hidden = 512, .heads = 8, .vocab = 23000, .seq_len = 1024});
  ASSERT_NEAR(static_cast<double>(model.parameters()), 50e6, 1e6);
  for (const char* text : {"d4z0", "d4z1", "t2d2z0", "t4z0", "p2d2z0", "t2p2d2z1", "d7z0", "d32z1"}) {
    const Layout layout = parse_layout(text);
    std::uint64_t all = 0;
    std::uint64_t most = 0;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::uint64_t written = 0;
      for (const Placed& p : placement(model, layout, rank)) written += p.writes.elements();
      all += written;
      most = std::max(most, written);
    }
    EXPECT_EQ(all, model.parameters()) << "one copy: " << text;
    EXPECT_LE(most * static_cast<std::uint64_t>(layout.ranks()), 2 * all) << text;
  }
}

TEST(PlacementProperty, ZeroStagesWriteEqualBoxes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const ModelSpec model = random_model(random, 1'000'000);
    Layout layout = random_layout(random, model);
    layout.zero = 0;
    const auto boxes = written_boxes(model, layout);
    for (layout.zero = 1; layout.zero <= 3; ++layout.zero)
      ASSERT_EQ(written_boxes(model, layout), boxes) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shardwright::reshard
