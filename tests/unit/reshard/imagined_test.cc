// Plans of reshards between layouts of models that are too large to be here.
#include "reshard/imagined.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ckpt/error.h"
#include "reshard/presets.h"
#include "reshard/reshard.h"
#include "tests/tools/bug_case_models.h"

namespace shardwright::reshard {
namespace {

ReshardReport plan_of(const char* preset, const Layout& from, const char* to) {
  ReshardOptions options;
  options.layout = parse_layout(to);
  return plan_reshard(build_model(find_preset(preset)->model), from, options);
}

TEST(ImaginedManifest, CoversTheModelOnce) {
  const ModelSpec model = build_model(l1_model());
  const ckpt::Manifest manifest = imagined_manifest(model, parse_layout("t4p2d2z1"));
  std::uint64_t elements = 0, bytes = 0;
  for (const ckpt::BoxEntry& box : manifest.boxes) elements += box.box.elements();
  for (const ckpt::FileRecord& file : manifest.files) bytes += file.bytes;
  EXPECT_EQ(elements, 3 * model.parameters());
  EXPECT_EQ(bytes, 12 * model.parameters());
  EXPECT_EQ(model_of(manifest).parameters(), model.parameters());
}

// BLOOM's published checkpoint of 2.3 TB has 14 bytes a parameter, bf16 weights beside fp32 weights and two
// moments; 12 of them are in ours, because bf16 weights are a cast of the fp32 ones.
TEST(PlanReshard, BloomsCheckpointIs12Of14Bytes) {
  Layout from = parse_layout("t4p12d8z1");
  from.stages = {5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5};
  const ReshardReport report = plan_of("bloom-176b", from, "t8p6d8z1");
  EXPECT_EQ(report.needed_bytes, 176'247'271'424u * 12);  // 2.11 TB
  EXPECT_NEAR(176'247'271'424. * 14, 2.3e12, 0.2e12);
  EXPECT_EQ(report.tensors, 3u + 70 * 16 + 2);
  EXPECT_EQ(report.files_written, 384u);
  ASSERT_EQ(report.ranks.size(), 384u);
  std::uint64_t sum = 0;
  for (const RankShare& share : report.ranks) sum += share.bytes;
  EXPECT_EQ(sum, report.needed_bytes);
}

TEST(PlanReshard, AllOfMtNlgsLayouts) {
  for (const char* from : {"t8p35d8z1", "t8p35d10z1", "t8p35d12z1"}) {
    const ReshardReport report = plan_of("mt-nlg-530b", parse_layout(from), "t8p35d8z1");
    EXPECT_EQ(report.needed_bytes, 529'600'819'200u * 12) << from;
    EXPECT_EQ(report.files_written, 2240u);
    const auto [least, most] = std::ranges::minmax_element(report.ranks, {}, &RankShare::bytes);
    EXPECT_LT(static_cast<double>(most->bytes), 1.35 * static_cast<double>(report.needed_bytes) / 2240)
        << from;
    EXPECT_GT(least->bytes, 0u);
  }
}

TEST(PlanReshard, WeightsOnlyIsAThird) {
  ReshardOptions options;
  options.layout = parse_layout("t2");
  options.weights_only = true;
  const ModelSpec model = build_model(g1_model());
  const ReshardReport report = plan_reshard(model, parse_layout("d3z1"), options);
  EXPECT_EQ(report.needed_bytes, 4 * model.parameters());
  EXPECT_EQ(report.ranks.size(), 2u);
}

TEST(PlanReshard, RefusesAnIllegalSource) {
  ReshardOptions options;
  EXPECT_THROW(plan_reshard(build_model(g1_model()), parse_layout("t3"), options), Error);
}

}  // namespace
}  // namespace shardwright::reshard
