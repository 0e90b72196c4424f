// GPT-2, BLOOM and Llama models of odd sizes in random legal layouts: what each rank needs, worked out from
// its layers and heads, is what placement gives it; every element has one writer, and plans between layouts
// lose nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "reshard/plan.h"
#include "tests/property/label_pieces.h"
#include "tests/property/random_case.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;

ModelSpec random_decoder(Random& random, int largest_head) {
  ModelConfig c;
  c.arch = random.chance(60) ? "llama" : random.chance(50) ? "gpt2" : "bloom";
  c.layers = random.number(1, 9);
  c.heads = random.number(1, 12);
  c.hidden = c.heads * 2 * random.number(1, largest_head / 2);
  c.kv_heads = c.heads;
  while (c.arch == "llama" &&
         (c.kv_heads = random.number(1, static_cast<int>(c.heads)), c.heads % c.kv_heads != 0)) {
  }
  c.ffn = random.number(1, 61);
  c.vocab = random.number(1, 150);
  c.seq_len = random.number(1, 33);
  c.tie_embeddings = random.chance(50);
  return build_model(c);
}

Layout legal_layout(Random& random, const ModelSpec& model, int most_ranks) {
  const char* orders[] = {"tdp", "tpd", "dtp", "dpt", "ptd", "pdt"};
  while (true) {
    Layout l = random_layout(random, model);
    l.tp = random.number(1, static_cast<int>(model.config.heads));
    l.order = orders[random.number(0, 5)];
    if (l.ranks() <= most_ranks && is_legal(l, model)) return l;
  }
}

// True if `rank` computes with the tensor: it runs the layer, or the end of the model, where it is used.
bool needs(const ModelSpec& model, const Layout& layout, int rank, const TensorSpec& tensor) {
  for (const StageLayers& s : virtual_stages(layout, model, rank)) {
    for (const std::int64_t place : tensor.places) {
      if (place < 0                      ? s.first
          : place == model.config.layers ? s.last
                                         : place >= s.first_layer && place < s.first_layer + s.layers) {
        return true;
      }
    }
  }
  return false;
}

// Rows (or columns) of the heads that tp index `t` computes, and of the KV heads that those use.
std::pair<std::uint64_t, std::uint64_t> head_rows(const ModelConfig& c, int t, int tp, bool kv) {
  const std::int64_t size = c.hidden / c.heads;
  const std::int64_t first = c.heads * t / tp;
  const std::int64_t end = c.heads * (t + 1) / tp;
  if (!kv) return {first * size, end * size};
  return {first * c.kv_heads / c.heads * size, ((end - 1) * c.kv_heads / c.heads + 1) * size};
}

void check_decoder(const ModelSpec& model, const Layout& layout) {
  struct Group {
    std::vector<int> ranks;  // ascending
    Box piece;
    std::vector<Box> writes;
    std::uint32_t copies = 0;
  };
  using Key = std::tuple<int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  std::vector<std::map<Key, Group>> groups(model.tensors.size());  // of one tensor: by dp index and held box
  std::vector<std::uint64_t> written(model.tensors.size());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const std::vector<Placed> held = placement(model, layout, rank);
    std::size_t next = 0;
    for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
      const TensorSpec& tensor = model.tensors[t];
      const bool here = next < held.size() && held[next].tensor == t;
      ASSERT_EQ(here, needs(model, layout, rank, tensor)) << tensor.name << " rank " << rank;
      if (!here) continue;
      const Placed& p = held[next++];
      const Role role = tensor.role;
      const bool kv = role == Role::k || role == Role::k_bias || role == Role::v || role == Role::v_bias;
      if (kv || role == Role::q || role == Role::q_bias || role == Role::o) {
        const auto [first, end] =
            head_rows(model.config, axis_index(layout, rank, Axis::tp), axis_size(layout, Axis::tp), kv);
        const std::size_t d = role == Role::o ? 1 : 0;
        ASSERT_EQ(p.holds.offset[d], first) << tensor.name;
        ASSERT_EQ(p.holds.end(d), end) << tensor.name;
      }
      written[t] += p.writes.elements();
      if (p.holds.empty()) {
        ASSERT_TRUE(p.writes.empty());
        continue;
      }
      const bool matrix = p.holds.shape.size() > 1;
      Group& group = groups[t][{axis_index(layout, rank, Axis::dp), p.holds.offset[0], p.holds.shape[0],
                                matrix ? p.holds.offset[1] : 0, matrix ? p.holds.shape[1] : 0}];
      if (group.ranks.empty()) {
        group.piece = p.piece;
        group.copies = p.copies;
      }
      ASSERT_EQ(group.piece, p.piece) << "holders agree";
      ASSERT_EQ(group.copies, p.copies);
      ASSERT_EQ(optimizer_box(p, layout), layout.zero == 0 ? p.holds : p.piece);
      group.ranks.push_back(rank);
      group.writes.push_back(p.writes);
    }
    ASSERT_EQ(next, held.size());
  }
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    ASSERT_EQ(written[t], ckpt::element_count(model.tensors[t].shape)) << model.tensors[t].name;
    std::vector<Box> writes;
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::pair<std::uint64_t, std::uint64_t>> pieces;
    for (const auto& [key, group] : groups[t]) {
      ASSERT_EQ(group.copies, group.ranks.size()) << model.tensors[t].name;
      for (const int rank : {group.ranks.front(), group.ranks.back()}) {
        std::vector<int> same = holders(model, layout, rank, t);
        std::sort(same.begin(), same.end());
        ASSERT_EQ(same, group.ranks) << model.tensors[t].name;
      }
      std::uint64_t filled = 0;
      for (const Box& w : group.writes) {
        ASSERT_TRUE(ckpt::contains(group.piece, w));
        filled += w.elements();
        writes.push_back(w);
      }
      ASSERT_EQ(filled, group.piece.elements()) << "the holders write their piece";
      // Optimizer pieces of one held box over the dp indices.
      auto& [sum, whole] = pieces[{std::get<1>(key), std::get<3>(key)}];
      sum += group.piece.elements();
      whole = std::get<2>(key) * (group.piece.shape.size() > 1 ? std::get<4>(key) : 1);
    }
    for (const auto& [box, sizes] : pieces)
      ASSERT_EQ(sizes.first, sizes.second) << "pieces partition the box";
    std::uint64_t parts = 0;
    for (const Box& w : writes) parts += w.empty() ? 0 : 1;
    ASSERT_EQ(overlap(writes, writes).size(), parts) << "no element has two writers";
  }
}

TEST(ModelProperty, EachRankHoldsWhatItsLayersAndHeadsNeed) {
  for (std::uint64_t seed = 1; seed <= 2500; ++seed) {
    Random random(seed);
    const ModelSpec model = random_decoder(random, 16);
    const Layout layout = legal_layout(random, model, 60);
    ASSERT_NO_FATAL_FAILURE(check_decoder(model, layout))
        << "seed " << seed << ": " << to_json(model.config) << to_json(layout, model);
  }
}

TEST(ModelProperty, MoreRanksThanRows) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed + 7'000'000);
    ModelSpec model = random_decoder(random, 4);
    Layout layout = legal_layout(random, model, 40);
    layout.dp = random.number(100, 300) / (layout.ranks() / layout.dp) + 1;
    ASSERT_NO_FATAL_FAILURE(check_decoder(model, layout))
        << "seed " << seed << ": " << to_json(model.config) << to_json(layout, model);
  }
}

TEST(ModelProperty, ThreeHopsAreTheIdentity) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Random random(seed + 3'000'000);
    const ModelSpec model = random_decoder(random, 6);
    std::vector<std::vector<std::vector<Box>>> boxes;
    std::string layouts;
    for (int i = 0; i < 3; ++i) {
      const Layout layout = legal_layout(random, model, 40);
      boxes.push_back(written_boxes(model, layout));
      layouts += to_json(layout, model) + " ";
    }
    for (std::size_t t = 0; t < model.tensors.size(); ++t) {
      const ckpt::Dims& shape = model.tensors[t].shape;
      const LabelPieces begin = labelled_pieces(boxes[0][t], shape);
      const LabelPieces at_c = moved(moved(begin, boxes[1][t]), boxes[2][t]);
      ASSERT_EQ(at_c.data, labelled_pieces(boxes[2][t], shape).data) << "seed " << seed << " " << layouts;
      ASSERT_EQ(moved(at_c, boxes[0][t]).data, begin.data) << "seed " << seed << " " << layouts;
    }
  }
}

std::uint64_t copies(const ModelSpec& model, const char* from, const char* to) {
  const auto sources = written_boxes(model, parse_layout(from));
  const auto targets = written_boxes(model, parse_layout(to));
  std::uint64_t count = 0;
  for (std::size_t t = 0; t < sources.size(); ++t) count += overlap(targets[t], sources[t]).size();
  return count;
}

// Twice the ranks on both sides: at most about twice the copies, along each axis.
TEST(ModelProperty, B136_PlanSizeGrowsWithThePiecesNotWithRanksSquared) {
  const ModelSpec model = build_model({.arch = "llama",
                                       .layers = 32,
                                       .hidden = 2048,
                                       .heads = 32,
                                       .kv_heads = 8,
                                       .vocab = 32000,
                                       .seq_len = 2048,
                                       .tie_embeddings = false});
  for (const auto& [a, b, c] :
       {std::tuple("t4p4d4z1", "t4p4d8z1", "t4p4d16z1"), std::tuple("t4p2d8z1", "t4p4d8z1", "t4p8d8z1"),
        std::tuple("t4p4d4z1", "t8p4d4z1", "t16p4d4z1"),
        std::tuple("t4p4d4z1v2", "t8p4d4z1v4", "t8p8d4z1")}) {
    const auto small = static_cast<double>(copies(model, a, b));
    const auto large = static_cast<double>(copies(model, b, c));
    EXPECT_LE(large, 2.5 * small) << a << " -> " << b << " -> " << c;
  }
}

TEST(ModelProperty, TenThousandRanksCostAsMuchAsTheirPieces) {
  const ModelSpec model =
      build_model({.layers = 100, .hidden = 1024, .heads = 16, .vocab = 50257, .seq_len = 1024});
  const Layout layout = parse_layout("t8p10d125z1");
  ASSERT_EQ(layout.ranks(), 10'000);
  const auto seconds_of = [](const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::uint64_t elements = 0;
  const double one = seconds_of([&] { elements += placement(model, layout, 4711).size(); });
  std::vector<std::vector<Box>> boxes;
  const double all = seconds_of([&] { boxes = written_boxes(model, layout); });
  const auto sources = written_boxes(model, parse_layout("t4p5d64z1"));
  std::uint64_t plan = 0;
  const double copying = seconds_of([&] {
    for (std::size_t t = 0; t < boxes.size(); ++t) plan += overlap(boxes[t], sources[t]).size();
  });
  for (const auto& of_tensor : boxes) {
    for (const Box& b : of_tensor) elements += b.elements();
  }
  EXPECT_GT(elements, model.parameters());
  RecordProperty("one_rank_ms", std::to_string(1e3 * one));
  RecordProperty("all_ranks_s", std::to_string(all));
  RecordProperty("copies_s", std::to_string(copying));
  std::printf("one rank %.3f ms, 10000 ranks %.3f s, %llu copies in %.3f s\n", 1e3 * one, all,
              static_cast<unsigned long long>(plan), copying);
  // Times are printed, and what makes them grow is checked: copies go with the boxes, not with their product.
  std::uint64_t pieces = 0;
  for (std::size_t t = 0; t < boxes.size(); ++t) pieces += boxes[t].size() + sources[t].size();
  EXPECT_LT(plan, 2 * pieces);
}

}  // namespace
}  // namespace shardwright::reshard
