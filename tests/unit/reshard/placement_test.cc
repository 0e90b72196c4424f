#include "reshard/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <set>

#include "tests/tools/bug_case_models.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;
using ckpt::Dims;
using ::testing::ElementsAre;

ModelSpec gpt2_124m() {
  return build_model({.layers = 12, .hidden = 768, .heads = 12, .vocab = 50257, .seq_len = 1024});
}

Placed placed(const ModelSpec& model, const char* layout, int rank, const std::string& name) {
  for (const Placed& p : placement(model, parse_layout(layout), rank)) {
    if (model.tensors[p.tensor].name == name) return p;
  }
  ADD_FAILURE() << name << " is not held by rank " << rank << " of " << layout;
  return {};
}

TensorSpec tensor(std::string name, Dims shape, TpCut tp, std::vector<std::int64_t> places) {
  TensorSpec t;
  t.name = std::move(name);
  t.shape = shape;
  t.tp = tp;
  t.places = std::move(places);
  return t;
}

TEST(Tile, IsWholeRowsUpToOneMebibyte) {
  EXPECT_EQ(tile({50257, 768}), (Dims{341, 768}));  // 341 x 3072 bytes
  EXPECT_EQ(tile({768, 3072}), (Dims{85, 3072}));
  EXPECT_EQ(tile({64, 64}), (Dims{64, 64})) << "never more than the tensor";
  EXPECT_EQ(tile({1'000'000}), (Dims{262144}));
  EXPECT_EQ(tile({5, 262144}), (Dims{1, 262144}));
}

TEST(Tile, IsCutFurtherOnlyWhereARowIsLonger) {
  EXPECT_EQ(tile({5, 262145}), (Dims{1, 262144}));
  EXPECT_EQ(tile({10, 1000, 1000}), (Dims{1, 262, 1000}));
  EXPECT_EQ(tile({3, 7, 300000}), (Dims{1, 1, 262144}));
}

TEST(Cut, ALargeBoxIsCutOnTileRows) {
  // 3072 rows of 768: tiles of 341 rows, nine whole ones and a rest of 3: ten units for two pieces.
  EXPECT_THAT(cut(Box::whole({3072, 768}), {3072, 768}, 2, 0),
              ElementsAre(Box{{0, 0}, {1705, 768}}, Box{{1705, 0}, {1367, 768}}));
  // 9 tile rows are fewer than 4 x 3.
  EXPECT_THAT(
      cut(Box::whole({3072, 768}), {3072, 768}, 3, 0),
      ElementsAre(Box{{0, 0}, {1024, 768}}, Box{{1024, 0}, {1024, 768}}, Box{{2048, 0}, {1024, 768}}));
}

TEST(Cut, TileRowsCountFromTheBox) {
  const Box box{{100, 0}, {3072, 768}};
  EXPECT_THAT(cut(box, {9000, 768}, 2, 0),
              ElementsAre(Box{{100, 0}, {1705, 768}}, Box{{1805, 0}, {1367, 768}}));
}

TEST(Cut, RemaindersRotateWithTheNumber) {
  const Dims shape{32, 1000};  // 125 KiB: cut, and not on tile rows
  const auto rows = [&](std::uint32_t number) {
    std::vector<std::uint64_t> sizes;
    for (const Box& b : cut(Box::whole(shape), shape, 5, number)) sizes.push_back(b.shape[0]);
    return sizes;
  };
  EXPECT_THAT(rows(0), ElementsAre(7, 7, 6, 6, 6));
  EXPECT_THAT(rows(1), ElementsAre(6, 7, 7, 6, 6));
  EXPECT_THAT(rows(4), ElementsAre(7, 6, 6, 6, 7)) << "wraps around";
  EXPECT_THAT(rows(5), ElementsAre(6, 7, 7, 6, 6)) << "digits 1 and 0 in base 5";
}

TEST(Cut, ASmallBoxGoesWholeToOneAndEmptyBoxesAreLegal) {
  EXPECT_THAT(cut(Box::whole({97}), {97}, 3, 1), ElementsAre(Box{{0}, {0}}, Box{{0}, {97}}, Box{{97}, {0}}));
  EXPECT_EQ(cut(Box::whole({16383}), {16383}, 2, 0)[0].shape[0], 16383u) << "4 bytes below 64 KiB";
  EXPECT_EQ(cut(Box::whole({16384}), {16384}, 2, 0)[0].shape[0], 8192u);
  const std::vector<Box> wide = cut(Box::whole({2, 100000}), {2, 100000}, 3, 0);
  EXPECT_THAT(wide,
              ElementsAre(Box{{0, 0}, {1, 100000}}, Box{{1, 0}, {1, 100000}}, Box{{2, 0}, {0, 100000}}));
}

// The worked example of reshard/README.md.
TEST(Placement, ReadmeExample) {
  const ModelSpec model = gpt2_124m();
  const char* layout = "t2p2d2z1";
  // The tied embedding: 25129 and 25128 rows by TP, 12617 + 12512 by DP (37 + 37 tile rows of 341, the last
  // one shorter), and each piece shared by the first and the last stage: 19 + 18 tile rows.
  const Placed first = placed(model, layout, 0, "model.embed_tokens.weight");
  EXPECT_EQ(first.holds, (Box{{0, 0}, {25129, 768}}));
  EXPECT_EQ(first.piece, (Box{{0, 0}, {12617, 768}}));
  EXPECT_EQ(first.copies, 2u);
  EXPECT_EQ(first.writes, (Box{{0, 0}, {6479, 768}}));
  EXPECT_EQ(first.chunk, (Dims{341, 768}));
  const Placed last = placed(model, layout, 4, "model.embed_tokens.weight");
  EXPECT_EQ(last.holds, first.holds);
  EXPECT_EQ(last.piece, first.piece);
  EXPECT_EQ(last.writes, (Box{{6479, 0}, {6138, 768}}));
  EXPECT_EQ(placed(model, layout, 3, "model.embed_tokens.weight").holds, (Box{{25129, 0}, {25128, 768}}));
  EXPECT_EQ(placed(model, layout, 3, "model.embed_tokens.weight").piece, (Box{{37746, 0}, {12511, 768}}));
  // Column parallel: whole heads.
  EXPECT_EQ(placed(model, layout, 3, "model.layers.0.self_attn.q_proj.weight").holds,
            (Box{{384, 0}, {384, 768}}));
  EXPECT_EQ(placed(model, layout, 3, "model.layers.0.self_attn.q_proj.weight").writes,
            (Box{{576, 0}, {192, 768}}));
  // Row parallel: cut by column over TP, by row over DP, here on the 85 rows of its tiles.
  const Placed down = placed(model, layout, 3, "model.layers.5.mlp.down_proj.weight");
  EXPECT_EQ(down.holds, (Box{{0, 1536}, {768, 1536}}));
  EXPECT_EQ(down.writes, (Box{{425, 1536}, {343, 1536}}));
  EXPECT_EQ(down.chunk, (Dims{85, 1536}));
  // A small replicated tensor has one writer: number 2, so DP index 1, and of the two copies TP index 1.
  for (int rank = 0; rank < 4; ++rank) {
    const Placed norm = placed(model, layout, rank, "model.layers.0.input_layernorm.weight");
    EXPECT_EQ(norm.holds, (Box{{0}, {768}}));
    EXPECT_EQ(norm.copies, 2u);
    EXPECT_EQ(norm.writes.elements(), rank == 3 ? 768u : 0u) << rank;
    EXPECT_EQ(norm.chunk, rank == 3 ? (Dims{768}) : Dims{}) << rank;
  }
}

TEST(Placement, B07_PackedPartsAreCutApart) {
  // L1 of the bug log: 12 heads and 4 KV heads of 8: 96 + 32 + 32 rows.
  ModelSpec model;
  model.config.layers = 1;
  model.tensors = {tensor("q", {96, 96}, {0, 12}, {0}), tensor("k", {32, 96}, {0, 4}, {0}),
                   tensor("v", {32, 96}, {0, 4}, {0})};
  for (int tp : {2, 4}) {
    const Layout layout{.tp = tp};
    for (int rank = 0; rank < tp; ++rank) {
      const std::vector<Placed> held = placement(model, layout, rank);
      ASSERT_EQ(held.size(), 3u);
      const auto t = static_cast<std::uint64_t>(tp);
      const auto r = static_cast<std::uint64_t>(rank);
      EXPECT_EQ(held[0].holds, (Box{{r * 96 / t, 0}, {96 / t, 96}}));
      EXPECT_EQ(held[1].holds, (Box{{r * 32 / t, 0}, {32 / t, 96}}));
      EXPECT_EQ(held[2].holds, held[1].holds);
    }
  }
}

TEST(Placement, B01_KvHeadsFewerThanTpAreHeldByGroups) {
  ModelSpec model;
  model.config.layers = 1;
  model.tensors = {tensor("k", {16, 64}, {0, 2}, {0})};  // two heads of 8
  const Layout layout{.tp = 6};
  int writers = 0;
  for (int rank = 0; rank < 6; ++rank) {
    const Placed k = placement(model, layout, rank).at(0);
    EXPECT_EQ(k.holds, (Box{{rank < 3 ? 0u : 8u, 0}, {8, 64}})) << rank;
    EXPECT_EQ(k.copies, 3u);
    writers += k.writes.empty() ? 0 : 1;
  }
  EXPECT_EQ(writers, 2) << "one of each group";
}

TEST(Placement, B08_VocabularyIsCutUnevenlyAndNeverPadded) {
  const ModelSpec model =
      build_model({.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 97, .seq_len = 32});
  std::vector<std::uint64_t> rows;
  for (int rank = 0; rank < 4; ++rank) {
    rows.push_back(placed(model, "t4", rank, "model.embed_tokens.weight").holds.shape[0]);
  }
  EXPECT_THAT(rows, ElementsAre(25, 24, 24, 24));
}

TEST(Placement, FewerVocabularyAndMlpRowsThanRanksLeaveSomeWithNothing) {
  // Not groups of holders, as for KV heads: sums over the axis would count their rows twice.
  const ModelSpec model =
      build_model({.layers = 1, .hidden = 12, .heads = 4, .ffn = 3, .vocab = 2, .seq_len = 8});
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                           "model.layers.0.mlp.up_proj.bias", "model.layers.0.mlp.down_proj.weight"}) {
    std::uint64_t held = 0, written = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Placed p = placed(model, "t4", rank, name);
      EXPECT_EQ(p.copies, 1u) << name;
      held += p.holds.elements();
      written += p.writes.elements();
    }
    const std::uint64_t all =
        ckpt::element_count(model.tensors[static_cast<std::size_t>(model.find(name))].shape);
    EXPECT_EQ(held, all) << name;
    EXPECT_EQ(written, all) << name;
    EXPECT_TRUE(placed(model, "t4", 3, name).holds.empty()) << name;
  }
}

TEST(Placement, B10_ReplicatedTensorsAreHeldWholeByEveryTpRank) {
  const ModelSpec model =
      build_model({.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 97, .seq_len = 32});
  for (const char* name : {"model.embed_positions.weight", "model.layers.1.input_layernorm.bias",
                           "model.layers.1.self_attn.o_proj.bias", "model.layers.1.mlp.down_proj.bias"}) {
    std::uint64_t written = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Placed p = placed(model, "t4", rank, name);
      EXPECT_EQ(p.holds, Box::whole(model.tensors[p.tensor].shape)) << name;
      EXPECT_EQ(p.copies, 4u);
      written += p.writes.elements();
    }
    EXPECT_EQ(written, ckpt::element_count(model.tensors[static_cast<std::size_t>(model.find(name))].shape))
        << name;
  }
}

TEST(Placement, B20_StagesHoldGlobalLayers) {
  const ModelSpec model = build_model({.layers = 4, .hidden = 64, .heads = 4, .vocab = 97, .seq_len = 32});
  const auto layers_of = [&](const Layout& layout, int rank) {
    std::set<std::int64_t> layers;
    for (const Placed& p : placement(model, layout, rank)) {
      for (std::int64_t place : model.tensors[p.tensor].places) layers.insert(place);
    }
    return layers;
  };
  // The tied embedding brings its other place (4, or -1) along.
  EXPECT_THAT(layers_of(parse_layout("p2"), 0), ElementsAre(-1, 0, 1, 4));
  EXPECT_THAT(layers_of(parse_layout("p2"), 1), ElementsAre(-1, 2, 3, 4));
  EXPECT_THAT(layers_of(parse_layout("p2v2"), 0), ElementsAre(-1, 0, 2, 4))
      << "virtual stage s runs on rank s mod pp";
  EXPECT_THAT(layers_of(parse_layout("p2v2"), 1), ElementsAre(-1, 1, 3, 4));
  Layout uneven = parse_layout("p3");
  uneven.stages = {1, 2, 1};
  EXPECT_THAT(layers_of(uneven, 1), ElementsAre(1, 2));
}

TEST(Placement, HoldersInTheOrderInWhichTheyWrite) {
  const ModelSpec model = build_model(tied(l2_model()));
  const auto row = [&](const char* name) { return static_cast<std::uint32_t>(model.find(name)); };
  // rank = tp + 4 * (dp + 2 * pp)
  const Layout layout = parse_layout("t4p2d2");
  EXPECT_THAT(holders(model, layout, 7, row("model.layers.0.self_attn.k_proj.weight")), ElementsAre(6, 7))
      << "a group for each KV head";
  EXPECT_THAT(holders(model, layout, 5, row("model.embed_tokens.weight")), ElementsAre(5, 13))
      << "tied: first and last stage";
  EXPECT_THAT(holders(model, layout, 5, row("model.layers.0.input_layernorm.weight")),
              ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(holders(model, layout, 5, row("model.layers.0.self_attn.q_proj.weight")), ElementsAre(5));
  EXPECT_THAT(holders(model, layout, 5, row("model.norm.weight")), ElementsAre()) << "the last stage's";
  for (const Placed& p : placement(model, layout, 5)) {
    EXPECT_EQ(p.copies, holders(model, layout, 5, p.tensor).size());
    EXPECT_EQ(p.stage_copies, model.tensors[p.tensor].name == "model.embed_tokens.weight" ? 2u : 1u);
  }
  EXPECT_EQ(placed(model, "t4", 0, "model.embed_tokens.weight").stage_copies, 1u) << "both ends on one rank";
  EXPECT_EQ(placed(model, "p2v2", 1, "model.embed_tokens.weight").stage_copies, 2u);
  Layout other = layout;
  other.order = "pdt";  // rank = pp + 2 * (dp + 2 * tp)
  EXPECT_THAT(holders(model, other, 4, row("model.layers.0.self_attn.k_proj.weight")), ElementsAre(0, 4));
  EXPECT_THAT(holders(model, other, 5, row("model.embed_tokens.weight")), ElementsAre(4, 5));
}

TEST(Placement, B124_MoreElementsThan32BitsCount) {
  constexpr std::uint64_t kElements = (std::uint64_t{1} << 31) + 5;
  ModelSpec model;
  model.config.layers = 1;
  model.tensors = {tensor("huge", {kElements}, {0, static_cast<std::int64_t>(kElements)}, {0})};
  const Layout layout{.tp = 2, .dp = 3, .zero = 1};
  std::uint64_t written = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank)
    written += placement(model, layout, rank).at(0).writes.elements();
  EXPECT_EQ(written, kElements);
  const Placed last = placement(model, layout, 5).at(0);
  EXPECT_EQ(last.writes.end(0), kElements);
  EXPECT_EQ(last.holds.offset[0], (std::uint64_t{1} << 30) + 3);
  EXPECT_EQ(last.chunk, (Dims{262144}));
}

TEST(Placement, OptimizerBoxFollowsTheZeroStage) {
  const ModelSpec model = gpt2_124m();
  const Placed q = placed(model, "d4z1", 1, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(optimizer_box(q, parse_layout("d4z0")), q.holds);
  EXPECT_EQ(optimizer_box(q, parse_layout("d4z1")), q.piece);
  EXPECT_EQ(dp_pieces(model, parse_layout("d4z1"), 3, q.tensor)[1], q.piece);
}

TEST(Placement, TimeOfARankDoesNotGrowWithTheRanks) {
  const ModelSpec model = gpt2_124m();
  const auto seconds = [&](const char* text) {
    const Layout layout = parse_layout(text);
    const std::clock_t start = std::clock();  // processor time: other tests run beside this one
    std::size_t held = 0;
    for (int i = 0; i < 20; ++i) held += placement(model, layout, i * 4801 % layout.ranks()).size();
    EXPECT_GT(held, 0u);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  seconds("d20");  // warm up
  EXPECT_LT(seconds("t4p12d2000"), 20 * seconds("d20") + 0.01);
}

}  // namespace
}  // namespace shardwright::reshard
