#include "reshard/layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <cmath>
#include <set>
#include <tuple>

#include "ckpt/error.h"

namespace shardwright::reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec model_with(std::int64_t layers, std::int64_t heads, std::int64_t kv_heads) {
  ModelSpec model =
      build_model({.layers = layers, .hidden = 16 * heads, .heads = heads, .vocab = 97, .seq_len = 8});
  model.config.kv_heads = kv_heads;  // the rules look at the numbers only
  return model;
}

std::string refusal(std::string_view text) {
  try {
    parse_layout(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return e.what();
  }
  return "";
}

TEST(Layout, ParsesAndPrints) {
  EXPECT_EQ(parse_layout("t2p4d3z1"), (Layout{.tp = 2, .pp = 4, .dp = 3, .zero = 1}));
  EXPECT_EQ(parse_layout("z3d5"), (Layout{.dp = 5, .zero = 3}));
  EXPECT_EQ(parse_layout("v2p3"), (Layout{.pp = 3, .vpp = 2}));
  EXPECT_EQ(parse_layout("d12").string(), "t1p1d12z0");
  EXPECT_EQ(parse_layout("p2v2t8").string(), "t8p2d1z0v2");
}

TEST(Layout, RefusesWhatIsNoLayout) {
  EXPECT_THAT(refusal(""), HasSubstr("is empty"));
  EXPECT_THAT(refusal("x2"), HasSubstr("'x' is not a letter of a layout"));
  EXPECT_THAT(refusal("t2t2"), HasSubstr("'t' stands twice"));
  EXPECT_THAT(refusal("t"), HasSubstr("'t' is not followed by a number"));
  EXPECT_THAT(refusal("td2"), HasSubstr("'t' is not followed by a number"));
  EXPECT_THAT(refusal("t-2"), HasSubstr("'t' is not followed by a number"));
  EXPECT_THAT(refusal("d0"), HasSubstr("'d' is 0, at least 1"));
  EXPECT_THAT(refusal("z4"), HasSubstr("ZeRO stages are 0 to 3"));
  EXPECT_THAT(refusal("d99999999999999"), HasSubstr("above 100000"));
  EXPECT_THAT(refusal("t2 d2"), HasSubstr("' ' is not a letter"));
}

TEST(Layout, LeastRanksWhateverAConfigurationSays) {
  EXPECT_EQ((Layout{.tp = 2, .pp = 3, .dp = 0}.least_ranks()), 6);
  EXPECT_EQ((Layout{.tp = 2, .pp = 3, .dp = 4}.least_ranks()), 24);
  EXPECT_EQ((Layout{.tp = 2'000'000'000, .pp = 2'000'000'000, .dp = 0}.least_ranks()), kMaxRanks);
}

TEST(Layout, RanksCountTpFastestThenDpThenPp) {
  const Layout layout = parse_layout("t2p2d3");
  const Coordinates at = coordinates(layout, 9);
  EXPECT_EQ(at.tp, 1);
  EXPECT_EQ(at.dp, 1);
  EXPECT_EQ(at.pp, 1);
  EXPECT_THAT(axis_group(layout, 9, Axis::tp), ElementsAre(8, 9));
  EXPECT_THAT(axis_group(layout, 9, Axis::dp), ElementsAre(7, 9, 11));
  EXPECT_THAT(axis_group(layout, 9, Axis::pp), ElementsAre(3, 9));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    EXPECT_EQ(rank_at(layout, coordinates(layout, rank)), rank);
    for (const Axis axis : {Axis::tp, Axis::pp, Axis::dp}) {
      const std::vector<int> group = axis_group(layout, rank, axis);
      EXPECT_EQ(static_cast<int>(group.size()), axis_size(layout, axis));
      EXPECT_EQ(group[static_cast<std::size_t>(axis_index(layout, rank, axis))], rank);
    }
  }
}

TEST(Layout, RanksCountInAnyOrderOfTheAxes) {
  Layout layout = parse_layout("t2p3d4");
  layout.order = "pdt";  // pp fastest: rank = pp + 3 * (dp + 4 * tp)
  EXPECT_EQ(rank_at(layout, {.tp = 1, .pp = 2, .dp = 3}), 2 + 3 * (3 + 4));
  EXPECT_THAT(axis_group(layout, 13, Axis::pp), ElementsAre(12, 13, 14));
  EXPECT_THAT(axis_group(layout, 13, Axis::dp), ElementsAre(13, 16, 19, 22));
  EXPECT_THAT(axis_group(layout, 13, Axis::tp), ElementsAre(1, 13));
  for (const char* order : {"tdp", "tpd", "dtp", "dpt", "ptd", "pdt"}) {
    layout.order = order;
    std::set<int> seen;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      EXPECT_EQ(rank_at(layout, coordinates(layout, rank)), rank) << order;
      seen.insert(axis_index(layout, rank, Axis::tp) + 2 * axis_index(layout, rank, Axis::pp) +
                  6 * axis_index(layout, rank, Axis::dp));
    }
    EXPECT_EQ(seen.size(), 24u) << order;
    // The first letter's group is neighbours.
    const Axis fastest = order[0] == 't' ? Axis::tp : order[0] == 'd' ? Axis::dp : Axis::pp;
    EXPECT_EQ(axis_group(layout, 0, fastest)[1], 1) << order;
    EXPECT_TRUE(illegal(layout, model_with(3, 4, 4)).empty());
  }
  for (const char* order : {"", "tp", "tdd", "tdpp", "xyz", "TDP"}) {
    layout.order = order;
    EXPECT_THAT(illegal(layout, model_with(3, 4, 4)), ElementsAre(HasSubstr("tdp, tpd, dtp, dpt, ptd, pdt")))
        << order;
  }
}

std::string stages_of(const Layout& layout, const ModelSpec& model, int rank) {
  std::string text;
  for (const StageLayers& s : virtual_stages(layout, model, rank)) {
    text += "s" + std::to_string(s.stage) + ":" + std::to_string(s.first_layer) + "+" +
            std::to_string(s.layers) + (s.first ? " first" : "") + (s.last ? " last" : "") + " ";
  }
  return text;
}

TEST(Layout, VirtualStagesOfARankInModelOrder) {
  const ModelSpec model = model_with(7, 4, 4);
  EXPECT_EQ(stages_of(parse_layout("t2d2"), model, 3), "s0:0+7 first last ");
  EXPECT_EQ(stages_of(parse_layout("p2v2"), model, 0), "s0:0+2 first s2:4+2 ");
  EXPECT_EQ(stages_of(parse_layout("p2v2"), model, 1), "s1:2+2 s3:6+1 last ");
  Layout uneven = parse_layout("t2p3d2");
  uneven.stages = {4, 1, 2};
  EXPECT_EQ(stages_of(uneven, model, 0), "s0:0+4 first ");
  EXPECT_EQ(stages_of(uneven, model, 7), "s1:4+1 ");
  EXPECT_EQ(stages_of(uneven, model, 8), "s2:5+2 last ");
  uneven.order = "ptd";
  EXPECT_EQ(stages_of(uneven, model, 1), "s1:4+1 ");
}

TEST(Layout, B17_RemainderOfLayersGoesToTheFirstStages) {
  const ModelSpec model = model_with(30, 4, 4);
  EXPECT_THAT(stage_layers(parse_layout("p4"), model), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(stage_layers(parse_layout("p7"), model_with(7, 4, 4)), ElementsAre(1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(stage_layers(parse_layout("p2v2"), model_with(7, 4, 4)), ElementsAre(2, 2, 2, 1));
  Layout chosen = parse_layout("p3");
  chosen.stages = {10, 11, 9};
  EXPECT_THAT(stage_layers(chosen, model), ElementsAre(10, 11, 9));
}

TEST(Layout, JsonGoesThereAndBack) {
  const ModelSpec model = model_with(7, 4, 4);
  Layout layout = parse_layout("t2p2d3z1v2");
  EXPECT_EQ(
      to_json(layout, model),
      R"({"dp":3,"order":"tdp","pp":2,"stages":[2,2,2,1],"string":"t2p2d3z1v2","tp":2,"vpp":2,"zero":1})");
  EXPECT_EQ(parse_layout_json(to_json(layout, model)), layout) << "the even spread is not kept as a choice";
  layout.stages = {1, 2, 3, 1};
  layout.order = "dpt";
  EXPECT_EQ(parse_layout_json(to_json(layout, model)), layout);
  EXPECT_EQ(parse_layout_json(R"({"tp":2,"pp":1,"dp":1,"zero":0,"vpp":1,"stages":[4]})").order, "tdp")
      << "written before ranks had an order";
  EXPECT_THROW(parse_layout_json(R"({"tp":1,"pp":1,"dp":1,"zero":0,"vpp":1,"stages":[4],"order":"tdx"})"),
               Error);
  EXPECT_THROW(parse_layout_json(R"({"tp":90000,"pp":90000,"dp":90000,"zero":0,"vpp":1,"stages":[4]})"),
               Error);
  EXPECT_THROW(parse_layout_json("{}"), Error);
  // Not what a conversion would make of them: 2, 2 and 1.
  for (const char* tp : {"2.7", "4294967298", "true", "\"2\"", "1e60"})
    EXPECT_THROW(
        parse_layout_json(fmt::format(R"({{"tp":{},"pp":1,"dp":1,"zero":0,"vpp":1,"stages":[4]}})", tp)),
        Error)
        << tp;
  EXPECT_THROW(parse_layout_json(R"({"tp":1,"pp":1,"dp":1,"zero":0,"vpp":1,"stages":[4294967300]})"), Error);
  EXPECT_THROW(parse_layout_json(R"({"tp":0,"pp":1,"dp":1,"zero":0,"vpp":1,"stages":[4]})"), Error);
}

TEST(LayoutRules, B03_TpMessageGivesHeadsAndPossibleDegrees) {
  EXPECT_THAT(illegal(parse_layout("t3"), model_with(4, 4, 4)),
              ElementsAre("layout t3p1d1z0: tp 3: does not divide the 4 heads; possible with 4 heads and 4 "
                          "KV heads: 1, 2, 4; nearest legal layouts of 3 ranks: t1p1d3z0, t1p3d1z0"));
  EXPECT_THAT(illegal(parse_layout("t6"), model_with(4, 12, 4)),
              ElementsAre("layout t6p1d1z0: tp 6: and the 4 KV heads do not divide each other; possible with "
                          "12 heads and 4 KV heads: 1, 2, 4, 12; nearest legal layouts of 6 ranks: t2p1d3z0, "
                          "t2p3d1z0, t1p1d6z0"));
  EXPECT_TRUE(illegal(parse_layout("t12"), model_with(4, 12, 4)).empty());
  EXPECT_TRUE(illegal(parse_layout("t4"), model_with(4, 8, 2)).empty());
}

TEST(LayoutRules, StagesAndPipeline) {
  const ModelSpec model = model_with(4, 4, 4);
  EXPECT_THAT(
      illegal(parse_layout("p5d2"), model),
      ElementsAre("layout t1p5d2z0: pp 5: is more than the 4 layers; possible pp: 1 to 4; nearest legal "
                  "layouts of 10 ranks: t1p2d5z0, t1p1d10z0, t2p1d5z0"));
  EXPECT_THAT(
      illegal(parse_layout("p3v2"), model),
      ElementsAre("layout t1p3d1z0v2: pp 3 x vpp 2: 6 stages are more than the 4 layers; pp x vpp of at "
                  "most 4; nearest legal layouts of 3 ranks: t1p3d1z0, t1p1d3z0"));
  EXPECT_THAT(
      illegal(parse_layout("v2d6"), model),
      ElementsAre("layout t1p1d6z0v2: vpp 2: needs a pipeline and pp is 1; vpp 1, or pp of at least 2; "
                  "nearest legal layouts of 6 ranks: t1p1d6z0, t1p2d3z0v2, t2p1d3z0"));
  EXPECT_TRUE(illegal(parse_layout("p2v2"), model).empty());
  EXPECT_THAT(
      illegal(parse_layout("p2v2"), model, BatchShape{12, 4}),
      ElementsAre("layout t1p2d1z0v2: vpp 2: interleaving needs micro-batches divisible by pp and there "
                  "are 3; pp of 3, or vpp 1; nearest legal layouts of 2 ranks: t1p2d1z0, t2p1d1z0"));
  EXPECT_TRUE(illegal(parse_layout("p2v2"), model, BatchShape{12, 3}).empty());
}

TEST(LayoutRules, StagesAreNumbersThatAddUp) {
  const ModelSpec model = model_with(4, 4, 4);
  Layout layout = parse_layout("p2");
  layout.stages = {1, 3};
  EXPECT_TRUE(illegal(layout, model).empty());
  layout.stages = {1, 2};
  EXPECT_THAT(
      illegal(layout, model),
      ElementsAre("layout t1p2d1z0: stages: sum to 3 layers; the model has 4, as in 2,2; nearest legal "
                  "layouts of 2 ranks: t1p2d1z0, t1p1d2z0, t2p1d1z0"));
  layout.stages = {4, 1};
  EXPECT_THAT(illegal(layout, model), ElementsAre(HasSubstr("sum to 5 layers; the model has 4, as in 3,1;")));
  layout.stages = {4, 0};
  EXPECT_THAT(illegal(layout, model),
              ElementsAre(HasSubstr("stages: one has no layer; at least 1 layer in each, as in 3,1;")));
  layout.stages = {4};
  EXPECT_THAT(
      illegal(layout, model),
      ElementsAre(HasSubstr("stages: 1 numbers for 2 stages (pp x vpp); one number a stage, as in 2,2;")));
  layout.stages = {2'000'000'000, 2'000'000'000};
  EXPECT_THAT(illegal(layout, model),
              ElementsAre(HasSubstr("sum to 4000000000 layers; the model has 4, as in 2,2")));
}

TEST(LayoutRules, B146_PossibleDataParallelDegreesAreListed) {
  const ModelSpec model = model_with(4, 4, 4);
  EXPECT_THAT(
      illegal(parse_layout("d5"), model, BatchShape{12, 1}),
      ElementsAre("layout t1p1d5z0: dp 5: micro_batch 1 x dp does not divide global_batch 12; "
                  "possible dp: 1, 2, 3, 4, 6, 12; none of 5 ranks is legal, nearest legal layouts of 4 "
                  "ranks: t1p1d4z0, t2p1d2z0, t1p2d2z0"));
  EXPECT_TRUE(illegal(parse_layout("d6"), model, BatchShape{12, 1}).empty());
  EXPECT_TRUE(illegal(parse_layout("d5"), model).empty()) << "without a batch the rule is training's";
  EXPECT_THAT(
      illegal(parse_layout("d1"), model, BatchShape{12, 5}),
      ElementsAre("layout t1p1d1z0: dp 1: micro_batch 5 x dp does not divide global_batch 12; no dp is "
                  "possible, choose another micro_batch: 1, 2, 3, 4, 6, 12"));
  EXPECT_EQ(micro_batches(parse_layout("d3"), BatchShape{12, 2}), 2);
}

TEST(LayoutRules, RankOrderNamesEachAxisOnce) {
  Layout layout = parse_layout("t2d3");
  layout.order = "tpp";
  EXPECT_THAT(
      illegal(layout, model_with(4, 4, 4)),
      ElementsAre("layout t2p1d3z0: rank order 'tpp': does not name t, d and p once each; one of tdp, "
                  "tpd, dtp, dpt, ptd, pdt (fastest axis first), nearest: tdp; nearest legal layouts of 6 "
                  "ranks: t2p1d3z0, t1p1d6z0, t1p2d3z0"));
}

TEST(LayoutRules, AllBrokenRulesAreReportedTogether) {
  try {
    check_layout(parse_layout("t3p9d5"), model_with(4, 4, 4), BatchShape{12, 1});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    const std::string message = e.what();
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
  }
  EXPECT_THAT(illegal(parse_layout("d100000p2"), model_with(4, 4, 4)),
              ElementsAre(HasSubstr("more than 100000 ranks")));
}

// What is suggested keeps every rule, and no layout that does is nearer than the first; whatever was asked
// for, the answer is there at once.
TEST(LayoutRules, SuggestionsAreLegalAndTheNearest) {
  const auto ratio = [](int a, int b) { return std::abs(std::log(static_cast<double>(a) / b)); };
  for (const auto& [layers, heads, kv] : {std::tuple(4, 4, 4), std::tuple(6, 12, 4), std::tuple(7, 5, 5)}) {
    const ModelSpec model = model_with(layers, heads, kv);
    for (const auto& batch : {std::optional<BatchShape>(), std::optional(BatchShape{12, 1})}) {
      for (int code = 0; code < 7 * 9 * 8 * 3; code += 5) {
        const Layout asked{
            .tp = 1 + code % 7, .pp = 1 + code / 7 % 9, .dp = 1 + code / 63 % 8, .vpp = 1 + code / 504};
        const std::vector<std::string> broken = illegal(asked, model, batch);
        ASSERT_EQ(broken.empty(), is_legal(asked, model, batch));
        const std::vector<Layout> near = nearest_legal(asked, model, batch, 5);
        ASSERT_FALSE(near.empty());
        for (const Layout& l : near) {
          ASSERT_TRUE(is_legal(l, model, batch)) << l.string();
          ASSERT_EQ(l.ranks(), near[0].ranks());
        }
        if (broken.empty()) {
          ASSERT_EQ(near[0], asked);
        }
        const auto far = [&](const Layout& l) {
          return ratio(l.tp, asked.tp) + ratio(l.pp, asked.pp) + ratio(l.dp, asked.dp) +
                 ratio(l.vpp, asked.vpp);
        };
        Layout other;
        for (other.tp = 1; other.tp <= asked.ranks(); ++other.tp) {
          for (other.pp = 1; other.tp * other.pp <= asked.ranks(); ++other.pp) {
            for (other.dp = 1; other.tp * other.pp * other.dp <= asked.ranks(); ++other.dp) {
              if (!is_legal(other, model, batch)) continue;
              ASSERT_LE(other.ranks(), near[0].ranks()) << other.string() << " for " << asked.string();
              if (other.ranks() == near[0].ranks() && asked.vpp == 1) {
                ASSERT_LE(far(near[0]), far(other) + 1e-5);
              }
            }
          }
        }
      }
    }
  }
}

TEST(LayoutRules, HugeQuestionsAreAnsweredAtOnce) {
  const std::clock_t start = std::clock();  // processor time: other tests run beside this one
  ModelSpec model = model_with(4, 4, 4);
  model.config.layers = 100'000;
  model.config.heads = model.config.kv_heads = 720'720;
  for (const char* text :
       {"t99991", "t7p7d2040", "p99991", "t3p33333d3", "d100000v9", "t100000p100000d100000"}) {
    for (const auto& batch : {std::optional<BatchShape>(), std::optional(BatchShape{3'603'600, 5}),
                              std::optional(BatchShape{std::int64_t{1} << 62, std::int64_t{1} << 61})}) {
      for (const Layout& l : nearest_legal(parse_layout(text), model, batch))
        EXPECT_TRUE(is_legal(l, model, batch)) << l.string();
      illegal(parse_layout(text), model, batch);
    }
  }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 36 * 0.25);
}

TEST(LayoutRules, DpZeroIsWhatTheRankCountLeaves) {
  Layout layout = parse_layout("t2p2");
  layout.dp = 0;
  EXPECT_EQ(with_ranks(layout, 12).dp, 3);
  EXPECT_EQ(with_ranks(layout, 0).dp, 1);
  EXPECT_THROW(with_ranks(layout, 6), Error);
  EXPECT_EQ(with_ranks(parse_layout("t2d3"), 6).dp, 3);
  EXPECT_THROW(with_ranks(parse_layout("t2d3"), 4), Error);
}

TEST(Shrink, KeepsTpAndPpWhileItCan) {
  const ModelSpec model = model_with(4, 4, 4);
  const BatchShape batch{12, 1};
  const auto after = [&](const char* old, int remaining) {
    const auto layout = shrink(parse_layout(old), model, batch, remaining, 1);
    return layout ? layout->string() : "none";
  };
  EXPECT_EQ(after("d4z1", 3), "t1p1d3z1");
  EXPECT_EQ(after("t2d2z1", 3), "t1p1d3z1") << "3 ranks with tp 1 are more than 2 with tp 2";
  EXPECT_EQ(after("t2p2d2", 6), "t2p1d3z0") << "pp 2 would need a multiple of 4; pp 1 is nearer than pp 3";
  EXPECT_EQ(after("t2p2d2", 4), "t2p2d1z0");
  EXPECT_EQ(after("t4p1d3", 8), "t4p1d2z0");
  EXPECT_EQ(after("d6", 5), "t1p1d4z0")
      << "5 does not divide the batch, and 5 stages are more than the layers";
}

TEST(Shrink, RespectsMinimumAndStages) {
  const ModelSpec model = model_with(4, 4, 4);
  Layout old = parse_layout("p2d2");
  old.stages = {1, 3};
  auto next = shrink(old, model, {12, 1}, 3, 1);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->string(), "t1p1d3z0") << "pp 1 and 3 are equally near";
  EXPECT_TRUE(next->stages.empty());
  next = shrink(old, model, {12, 1}, 2, 1);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->string(), "t1p2d1z0");
  EXPECT_THAT(next->stages, ElementsAre(1, 3));
  EXPECT_FALSE(shrink(old, model, {12, 1}, 2, 3));
  EXPECT_FALSE(shrink(old, model, {12, 1}, 0, 0));
}

}  // namespace
}  // namespace shardwright::reshard
