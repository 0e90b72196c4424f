// Boxes of the bug log's models, worked out by hand: L1, L2, U1 and T1 are Llama models, G1 is a GPT-2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "reshard/placement.h"
#include "reshard/plan.h"
#include "tests/tools/bug_case_models.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;
using ::testing::ElementsAre;

ModelSpec l1() { return build_model(l1_model()); }
ModelSpec l2() { return build_model(l2_model()); }
ModelSpec u1() { return build_model(u1_model()); }
ModelSpec t1() { return build_model(t1_model()); }
ModelSpec g1() { return build_model(g1_model()); }

Placed placed(const ModelSpec& model, const Layout& layout, int rank, const std::string& name) {
  for (const Placed& p : placement(model, layout, rank)) {
    if (model.tensors[p.tensor].name == name) return p;
  }
  ADD_FAILURE() << name << " is not held by rank " << rank << " of " << layout.string();
  return {};
}

Box holds(const ModelSpec& model, const char* layout, int rank, const std::string& name) {
  return placed(model, parse_layout(layout), rank, name).holds;
}

// Layers whose tensors a rank holds, ends of the model as -1 and `layers`; the tied embedding not counted.
std::set<std::int64_t> layers_of(const ModelSpec& model, const Layout& layout, int rank) {
  std::set<std::int64_t> layers;
  for (const Placed& p : placement(model, layout, rank)) {
    if (model.tensors[p.tensor].places.size() == 1) layers.insert(model.tensors[p.tensor].layer());
  }
  return layers;
}

// Ranks that write anything of a tensor.
std::vector<int> writers(const ModelSpec& model, const Layout& layout, const std::string& name) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (const Placed& p : placement(model, layout, rank)) {
      if (model.tensors[p.tensor].name == name && !p.writes.empty()) ranks.push_back(rank);
    }
  }
  return ranks;
}

const std::string kLayer0 = "model.layers.0.";

TEST(ModelPlacement, B07_L1OverTwoAndFour) {
  const ModelSpec m = l1();
  EXPECT_EQ(holds(m, "t2", 1, kLayer0 + "self_attn.q_proj.weight"), (Box{{48, 0}, {48, 96}}));
  EXPECT_EQ(holds(m, "t2", 1, kLayer0 + "self_attn.k_proj.weight"), (Box{{16, 0}, {16, 96}}));
  EXPECT_EQ(holds(m, "t2", 1, kLayer0 + "self_attn.v_proj.weight"), (Box{{16, 0}, {16, 96}}));
  EXPECT_EQ(holds(m, "t2", 1, "model.embed_tokens.weight"), (Box{{102, 0}, {101, 96}}));
  EXPECT_EQ(holds(m, "t4", 3, kLayer0 + "self_attn.k_proj.weight"), (Box{{24, 0}, {8, 96}}));
  EXPECT_EQ(holds(m, "t4", 2, kLayer0 + "self_attn.o_proj.weight"), (Box{{0, 48}, {96, 24}}));
  EXPECT_EQ(holds(m, "t4", 3, "lm_head.weight"), (Box{{153, 0}, {50, 96}}));
  EXPECT_EQ(holds(m, "t4", 3, "model.norm.weight"), (Box{{0}, {96}}));
}

TEST(ModelPlacement, B04_GateAndUpAreCutApart) {
  const ModelSpec m = l1();
  for (int rank = 0; rank < 8; ++rank) {
    const auto t = static_cast<std::uint64_t>(rank % 4);
    const std::string layer = rank < 4 ? "model.layers.2." : "model.layers.3.";
    EXPECT_EQ(holds(m, "t4p2", rank, layer + "mlp.gate_proj.weight"), (Box{{44 * t, 0}, {44, 96}}));
    EXPECT_EQ(holds(m, "t4p2", rank, layer + "mlp.up_proj.weight"), (Box{{44 * t, 0}, {44, 96}}));
    EXPECT_EQ(holds(m, "t4p2", rank, layer + "mlp.down_proj.weight"), (Box{{0, 44 * t}, {96, 44}}));
  }
}

TEST(ModelPlacement, B03_TwelveRanksShareFourKvHeads) {
  const ModelSpec m = l1();
  const Layout layout = parse_layout("t12");
  const Placed k = placed(m, layout, 7, kLayer0 + "self_attn.k_proj.weight");
  EXPECT_EQ(k.holds, (Box{{16, 0}, {8, 96}})) << "query head 7 uses KV head 2";
  EXPECT_EQ(k.copies, 3u);
  EXPECT_THAT(holders(m, layout, 7, k.tensor), ElementsAre(6, 7, 8));
  EXPECT_EQ(holds(m, "t12", 7, kLayer0 + "self_attn.q_proj.weight"), (Box{{56, 0}, {8, 96}}));
  // 176 = 8 x 15 + 4 x 14; 203 = 11 x 17 + 16.
  EXPECT_EQ(holds(m, "t12", 8, kLayer0 + "mlp.gate_proj.weight"), (Box{{120, 0}, {14, 96}}));
  EXPECT_EQ(holds(m, "t12", 11, "model.embed_tokens.weight"), (Box{{187, 0}, {16, 96}}));
}

TEST(ModelPlacement, B01_KvGroupsHaveOneWriterEach) {
  const ModelSpec m = l2();
  EXPECT_EQ(holds(m, "t4", 1, kLayer0 + "self_attn.k_proj.weight"), (Box{{0, 0}, {8, 64}}));
  EXPECT_EQ(holds(m, "t4", 2, kLayer0 + "self_attn.k_proj.weight"), (Box{{8, 0}, {8, 64}}));
  // All small: one writer of each group. Tensor 3 is binary 11, digit sum 2: the first of the two; 4 is 100:
  // the second.
  EXPECT_THAT(writers(m, parse_layout("t4"), kLayer0 + "self_attn.k_proj.weight"), ElementsAre(0, 2));
  EXPECT_THAT(writers(m, parse_layout("t4"), kLayer0 + "self_attn.v_proj.weight"), ElementsAre(1, 3));
  EXPECT_THAT(writers(m, parse_layout("t4"), kLayer0 + "input_layernorm.weight"), ElementsAre(1));
  // One KV head for all: 8 rows, on every rank, written once.
  const ModelSpec one = build_model(llama_model(4, 64, 8, 1, 96, 64));
  for (const char* layout : {"t1", "t2", "t4", "t8"}) {
    const Layout l = parse_layout(layout);
    for (int rank = 0; rank < l.ranks(); ++rank) {
      const Placed v = placed(one, l, rank, "model.layers.3.self_attn.v_proj.weight");
      EXPECT_EQ(v.holds, (Box{{0, 0}, {8, 64}}));
      EXPECT_EQ(static_cast<int>(v.copies), l.ranks());
    }
    EXPECT_EQ(writers(one, l, "model.layers.3.self_attn.v_proj.weight").size(), 1u);
  }
}

TEST(ModelPlacement, U1OverAllThreeAxes) {
  const ModelSpec m = u1();
  const Layout layout = parse_layout("t5p2d3z1");  // stages of 4 and 3 layers; rank = tp + 5 * (dp + 3 * pp)
  const int rank = 2 + 5 * (0 + 3 * 1);
  EXPECT_THAT(layers_of(m, layout, rank), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(placed(m, layout, rank, "model.layers.4.self_attn.q_proj.weight").holds, (Box{{16, 0}, {8, 40}}));
  EXPECT_EQ(placed(m, layout, rank, "model.layers.4.mlp.gate_proj.weight").holds, (Box{{42, 0}, {21, 40}}));
  EXPECT_EQ(placed(m, layout, rank, "model.layers.6.mlp.down_proj.weight").holds, (Box{{0, 42}, {40, 21}}));
  EXPECT_EQ(placed(m, layout, rank, "lm_head.weight").holds, (Box{{53, 0}, {26, 40}})) << "131 = 27 + 4 x 26";
  // Tensor 1 + 4 x 9 + 1 = 38 is 1102 in base 3, digit sum 4: whole to dp index 1.
  EXPECT_THAT(writers(m, layout, "model.layers.4.self_attn.q_proj.weight"), ElementsAre(20, 21, 22, 23, 24));
  // The norm before it, 37, is 1101: dp index 0, and 37 / 3 = 12 is 22 in base 5: tp index 4.
  EXPECT_THAT(writers(m, layout, "model.layers.4.input_layernorm.weight"), ElementsAre(19));
}

TEST(ModelPlacement, T1HasMoreRanksThanRows) {
  const ModelSpec m = t1();
  const Layout layout = parse_layout("t3d24z1");
  for (std::uint32_t t = 0; t < m.tensors.size(); ++t) {
    std::uint64_t written = 0;
    int ranks = 0;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const Placed p = placement(m, layout, rank).at(t);
      written += p.writes.elements();
      ranks += p.writes.empty() ? 0 : 1;
    }
    EXPECT_EQ(written, ckpt::element_count(m.tensors[t].shape)) << m.tensors[t].name;
    EXPECT_EQ(ranks, m.tensors[t].tp.dimension < 0 ? 1 : 3) << m.tensors[t].name;
  }
  EXPECT_EQ(holds(m, "t3", 1, kLayer0 + "mlp.up_proj.weight"), (Box{{7, 0}, {7, 12}}));
  EXPECT_EQ(holds(m, "t3", 2, "model.embed_tokens.weight"), (Box{{22, 0}, {11, 12}}));
}

TEST(ModelPlacement, B14_TiedEmbeddingOnTheFirstAndLastStage) {
  const ModelSpec m = g1();
  for (const char* text : {"p2", "p4", "p2v2"}) {
    const Layout layout = parse_layout(text);
    const int last = layout.ranks() - 1;
    for (int rank = 0; rank <= last; ++rank) {
      const std::vector<Placed> held = placement(m, layout, rank);
      const bool has = m.tensors[held.front().tensor].name == "model.embed_tokens.weight";
      EXPECT_EQ(has, rank == 0 || rank == last) << text << " rank " << rank;
      if (has) {
        EXPECT_EQ(held.front().holds, (Box{{0, 0}, {97, 64}}));
        EXPECT_EQ(held.front().stage_copies, 2u);
      }
    }
    // 24 KiB, tensor 0: whole to the first holder.
    EXPECT_THAT(writers(m, layout, "model.embed_tokens.weight"), ElementsAre(0));
  }
  EXPECT_EQ(placed(m, parse_layout("p1"), 0, "model.embed_tokens.weight").stage_copies, 1u);
}

TEST(ModelPlacement, B15_OneStateForTheTiedPair) {
  const ModelSpec m = g1();
  EXPECT_EQ(m.find("lm_head.weight"), -1);
  for (const char* text : {"t4d2z1", "t2p2d2z1"}) {
    const Layout layout = parse_layout(text);
    std::uint64_t written = 0, optimizer = 0;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      for (const Placed& p : placement(m, layout, rank)) {
        if (m.tensors[p.tensor].name != "model.embed_tokens.weight") continue;
        written += p.writes.elements();
        if (axis_index(layout, rank, Axis::pp) == 0) optimizer += optimizer_box(p, layout).elements();
      }
    }
    EXPECT_EQ(written, 97u * 64) << text;
    EXPECT_EQ(optimizer, 97u * 64) << text << ": the first stage's ranks share its optimizer state";
  }
}

TEST(ModelPlacement, B17_SevenLayersOverAnyStages) {
  const ModelSpec m = u1();
  EXPECT_THAT(layers_of(m, parse_layout("p2"), 0), ElementsAre(-1, 0, 1, 2, 3));
  EXPECT_THAT(layers_of(m, parse_layout("p3"), 1), ElementsAre(3, 4));
  EXPECT_THAT(layers_of(m, parse_layout("p4"), 3), ElementsAre(6, 7));
  Layout uneven = parse_layout("p3");
  uneven.stages = {1, 4, 2};
  EXPECT_THAT(layers_of(m, uneven, 0), ElementsAre(-1, 0));
  EXPECT_THAT(layers_of(m, uneven, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(layers_of(m, uneven, 2), ElementsAre(5, 6, 7));
}

TEST(ModelPlacement, B19_VirtualStages) {
  const ModelSpec m = build_model(llama_model(8, 64, 8, 2, 96, 64));
  EXPECT_THAT(layers_of(m, parse_layout("p2v2"), 0), ElementsAre(-1, 0, 1, 4, 5));
  EXPECT_THAT(layers_of(m, parse_layout("p2v2"), 1), ElementsAre(2, 3, 6, 7, 8));
  EXPECT_THAT(layers_of(m, parse_layout("p2v4"), 1), ElementsAre(1, 3, 5, 7, 8));
  // From any of these layouts to any other, each target box is filled completely.
  for (const char* from : {"p2", "p2v2", "p4", "p2v4"}) {
    for (const char* to : {"p2", "p2v2", "p4", "p2v4"}) {
      std::uint64_t copied = 0;
      for (std::uint32_t t = 0; t < m.tensors.size(); ++t) {
        std::vector<Box> sources, targets;
        for (const auto& [layout, boxes] : {std::pair(from, &sources), std::pair(to, &targets)}) {
          const Layout l = parse_layout(layout);
          for (int rank = 0; rank < l.ranks(); ++rank) {
            for (const Placed& p : placement(m, l, rank)) {
              if (p.tensor == t) boxes->push_back(p.writes);
            }
          }
        }
        for (const Copy& copy : overlap(targets, sources)) copied += copy.region.elements();
      }
      EXPECT_EQ(copied, m.parameters()) << from << " -> " << to;
    }
  }
}

TEST(ModelPlacement, B20_TheSecondStageHoldsItsOwnLayers) {
  const ModelSpec m = l2();
  EXPECT_THAT(layers_of(m, parse_layout("p2d1z3"), 1), ElementsAre(2, 3, 4));
  Layout other = parse_layout("t2p2");
  other.order = "pdt";
  EXPECT_THAT(layers_of(m, other, 1), ElementsAre(2, 3, 4)) << "pp counts fastest";
  EXPECT_THAT(layers_of(m, other, 2), ElementsAre(-1, 0, 1));
}

}  // namespace
}  // namespace shardwright::reshard
