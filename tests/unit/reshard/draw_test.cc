#include "reshard/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/error.h"
#include "tests/tools/bug_case_models.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

ModelSpec l2() { return build_model(tied(l2_model())); }

TEST(Draw, SidesListHoldersAndWriters) {
  const ModelSpec model = l2();
  const auto row = [&](const char* name) { return static_cast<std::uint32_t>(model.find(name)); };
  const std::vector<DrawnSide> sides =
      drawn_sides(model, parse_layout("t4p2"),
                  {row("model.layers.0.self_attn.k_proj.weight"), row("model.embed_tokens.weight"),
                   row("model.layers.2.input_layernorm.weight")});
  ASSERT_EQ(sides[0].holds.size(), 2u) << "a group of ranks for each KV head";
  EXPECT_EQ(sides[0].holds[1].box, (Box{{8, 0}, {8, 64}}));
  EXPECT_THAT(sides[0].holds[1].ranks, ElementsAre(2, 3));
  ASSERT_EQ(sides[0].writes.size(), 2u);
  EXPECT_THAT(sides[0].writes[0].ranks, ElementsAre(0));
  ASSERT_EQ(sides[1].holds.size(), 4u);
  EXPECT_THAT(sides[1].holds[0].ranks, ElementsAre(0, 4)) << "tied over the stages";
  ASSERT_EQ(sides[2].holds.size(), 1u);
  EXPECT_THAT(sides[2].holds[0].ranks, ElementsAre(4, 5, 6, 7)) << "the second stage";
  EXPECT_EQ(sides[2].writes.size(), 1u);
}

TEST(Draw, NamesAreEscapedAndScalarsHaveAPlace) {
  Drawing drawing{.title = "a <b> & \"c\"\x01\n", .columns = {"before"}, .tensors = {}};
  drawing.tensors.push_back({"x<&\">", {}, {{{}, {{Box{{}, {}}, {0}}}}}});
  drawing.tensors.push_back(
      {"cube", {2, 3, 5}, {{{}, {{Box{{0, 0, 0}, {2, 3, 2}}, {0}}, {Box{{0, 0, 2}, {2, 3, 3}}, {1}}}}}});
  const std::string svg = to_svg(drawing);
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;?\?</text>"));
  EXPECT_THAT(svg, HasSubstr("data-tensor=\"x&lt;&amp;&quot;&gt;\""));
  EXPECT_THAT(svg, HasSubstr("data-offset=\"0,0,2\" data-shape=\"2,3,3\""));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(count(svg, "class=\"writes\""), 3u);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "<rect") - 3, count(svg, "/>")) << "all but the writers' close themselves";
}

TEST(Draw, ManyRanksStayOnePicture) {
  const ModelSpec model = l2();
  const Layout layout = parse_layout("t8p4d300");
  const std::vector<DrawnSide> sides = drawn_sides(model, layout, {0, 3});
  const std::string svg = to_svg({.title = "",
                                  .columns = {"after"},
                                  .tensors = {{"e", {64, 64}, {sides[0]}}, {"k", {16, 64}, {sides[1]}}}});
  EXPECT_THAT(svg, HasSubstr("held by 600 ranks: 0, 8, … 9592"));
  EXPECT_THAT(svg, HasSubstr("held by 1200 ranks: "));
  EXPECT_THAT(svg, HasSubstr("… to rank 9599"));
  EXPECT_LT(svg.size(), 200'000u);
}

TEST(Draw, ACheckpointWithoutAModelIsDrawnAsStored) {
  ckpt::Manifest m;
  m.tensors = {{"a", {7, 3}}, {"b", {5}}};
  m.states = {{0, "value", ckpt::DType::f32, {}}, {1, "value", ckpt::DType::f32, {}}};
  m.files.resize(2);
  m.files[0].name = "rank-00000.h5";
  m.files[1].name = "rank-00012.h5";
  const auto box = [](std::uint32_t state, std::uint32_t file, Box b) {
    ckpt::BoxEntry entry;
    entry.state = state;
    entry.file = file;
    entry.box = b;
    return entry;
  };
  m.boxes = {box(0, 0, {{0, 0}, {4, 3}}), box(0, 1, {{4, 0}, {3, 3}}), box(1, 1, {{0}, {5}})};
  const Drawing drawing = draw_checkpoint(m, "t", std::nullopt, {});
  EXPECT_THAT(drawing.columns, ElementsAre("as stored"));
  ASSERT_EQ(drawing.tensors.size(), 2u);
  ASSERT_EQ(drawing.tensors[0].sides[0].writes.size(), 2u);
  EXPECT_THAT(drawing.tensors[0].sides[0].writes[1].ranks, ElementsAre(12));
  EXPECT_TRUE(drawing.tensors[0].sides[0].holds.empty());
  EXPECT_EQ(count(to_svg(drawing), "class=\"frame\""), 2u);
  EXPECT_THROW(draw_checkpoint(m, "t", parse_layout("t2"), {}), Error);
  // A model whose layout cannot be.
  const ModelSpec model = l2();
  ckpt::Manifest impossible;
  for (const TensorSpec& t : model.tensors) impossible.tensors.push_back({t.name, t.shape});
  impossible.description.model = to_json(model.config);
  impossible.description.layout = R"({"tp":3,"pp":1,"dp":1,"zero":0,"vpp":1,"stages":[1,1]})";
  try {
    draw_checkpoint(impossible, "t", std::nullopt, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::damaged);
  }
  try {
    draw_checkpoint(m, "t", std::nullopt, {"bb"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_STREQ(e.what(), "tensor 'bb': is not in the checkpoint; the nearest that is: b");
  }
}

}  // namespace
}  // namespace shardwright::reshard
