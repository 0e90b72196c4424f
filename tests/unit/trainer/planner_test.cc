#include "trainer/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "ckpt/error.h"
#include "reshard/presets.h"
#include "tests/tools/bug_case_models.h"
#include "trainer/decoder.h"
#include "trainer/parameters.h"
#include "trainer/plan_request.h"

namespace shardwright::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

PlanRequest request_for(const reshard::ModelConfig& model, int gpus, reshard::BatchShape batch) {
  PlanRequest request;
  request.model = reshard::build_model(model);
  request.gpus = gpus;
  request.shape.batch = batch;
  request.shape.positions = request.model.config.seq_len;
  return request;
}

PlanRequest preset_request(const char* name, int gpus) {
  const reshard::Preset* preset = reshard::find_preset(name);
  PlanRequest request = request_for(preset->model, gpus, {preset->global_batch, 1});
  request.shape.dtype = "bf16";
  return request;
}

// Of a checkpoint: what its training's configuration says counts, whatever else stands there.
TEST(PlanRequest, OfACheckpointsConfiguration) {
  const reshard::ModelSpec model = reshard::build_model(l1_model());
  const PlanRequest said =
      plan_request(model, R"({"train":{"global_batch":45,"micro_batch":3,"dtype":"bf16"},"model":7})", 5);
  EXPECT_EQ(said.gpus, 5);
  EXPECT_EQ(said.shape.batch.global_batch, 45);
  EXPECT_EQ(said.shape.batch.micro_batch, 3);
  EXPECT_EQ(said.shape.positions, model.config.seq_len);
  EXPECT_EQ(said.shape.dtype, "bf16");
  for (const char* text : {"", "[]", "{}", R"({"train":3})", R"({"train":{"global_batch":45}})",
                           R"({"train":{"global_batch":"45","micro_batch":3}})",
                           R"({"train":{"global_batch":45,"micro_batch":-3,"dtype":"int7"}})",
                           R"({"train":{"global_batch":1000000000001,"micro_batch":3,"dtype":7}})"}) {
    const PlanRequest unsaid = plan_request(model, text, 7);
    EXPECT_EQ(unsaid.shape.batch.global_batch, 7) << text;
    EXPECT_EQ(unsaid.shape.batch.micro_batch, 1) << text;
    EXPECT_EQ(unsaid.shape.dtype, "fp32") << text;
    EXPECT_EQ(plan_layouts(unsaid).front().layout.ranks(), 7) << text;
  }
}

// The one that is found without a visit to each rank is the fullest of all, but for padding.
TEST(PlanMemory, FullestRankIsTheFullestOfAll) {
  const reshard::BatchShape batch{12, 1};
  int cases = 0;
  for (const reshard::ModelConfig& config : {g1_model(), l1_model(), l2_model(), u1_model(), bl1_model()}) {
    const reshard::ModelSpec model = reshard::build_model(config);
    for (int ranks = 1; ranks <= 12; ++ranks) {
      for (const reshard::Layout& layout : reshard::legal_layouts(model, batch, ranks, 3)) {
        for (const char* dtype : {"fp32", "bf16"}) {
          TrainingShape shape;
          shape.batch = batch;
          shape.positions = config.seq_len;
          shape.dtype = dtype;
          const auto largest = largest_ranks(layout, reshard::rank_sizes(model, layout));
          const FullestRank fullest = LayoutMemory(model, layout, largest).fullest(shape);
          std::uint64_t most = 0;
          for (int rank = 0; rank < layout.ranks(); ++rank)
            most = std::max(most, memory_of_rank(model, layout, rank, shape).total());
          const std::uint64_t padding = 6 * 64 * model.tensors.size();
          EXPECT_GE(fullest.memory.total() + padding, most) << layout.string() << " " << dtype;
          EXPECT_LE(memory_of_rank(model, layout, fullest.rank, shape).total(), fullest.memory.total());
          ++cases;
        }
      }
    }
  }
  EXPECT_GT(cases, 400);
}

// What Parameters allocates is what was counted.
TEST(PlanMemory, ParametersAllocateWhatIsPlanned) {
  const reshard::ModelSpec model = reshard::build_model(l1_model());
  for (const char* text : {"t1", "d3z1", "t4p2d2z1", "t2p3d2z2", "d5z3", "p2v3"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const reshard::Layout layout = reshard::parse_layout(text);
      TrainingShape shape;
      shape.batch = {120, 1};
      shape.positions = 32;
      shape.dtype = dtype;
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        kernels::reset_memory_peaks();
        const kernels::MemoryBytes before = kernels::memory_peaks();
        const Parameters parameters(
            model, layout, rank,
            shape.dtype == "fp32" ? kernels::ElementType::f32 : kernels::ElementType::bf16);
        const kernels::MemoryBytes after = kernels::memory_peaks();
        const auto grown = [&](kernels::MemoryUse use) {
          return after[static_cast<std::size_t>(use)] - before[static_cast<std::size_t>(use)];
        };
        const MemoryBytes planned = memory_of_rank(model, layout, rank, shape);
        EXPECT_EQ(grown(kernels::MemoryUse::param), planned.param)
            << text << " " << dtype << " rank " << rank;
        EXPECT_EQ(grown(kernels::MemoryUse::grad), planned.grad) << text << " " << dtype << " rank " << rank;
        EXPECT_EQ(grown(kernels::MemoryUse::optimizer), planned.optimizer)
            << text << " " << dtype << " rank " << rank;
      }
    }
  }
}

// Psi parameters over N data parallel ranks, in bytes a parameter (Rajbhandari et al. 2020, with gradients in
// fp32).
TEST(PlanMemory, StatesShrinkWithTheZeroStage) {
  const PlanRequest request = preset_request("gpt2-xl", 64);
  const auto psi = static_cast<double>(request.model.parameters());
  const auto bytes = [&](const char* layout) {
    return plan_layout(request, reshard::parse_layout(layout)).memory;
  };
  const auto near = [&](std::uint64_t counted, double expected) {
    EXPECT_NEAR(static_cast<double>(counted) / psi, expected, 0.01 * expected);
  };
  near(bytes("d64z0").param, 2);
  near(bytes("d64z0").grad, 4);
  near(bytes("d64z0").optimizer, 12);
  near(bytes("d64z1").grad, 4);
  near(bytes("d64z1").optimizer, 12 / 64.);
  near(bytes("d64z2").param, 2);
  near(bytes("d64z2").grad, 4 / 64.);
  near(bytes("d64z3").param, 2 / 64.);
  near(bytes("d64z3").optimizer, 12 / 64.);
}

TEST(PlanTime, OneGpuComputesItsOperations) {
  PlanRequest request = request_for(g1_model(), 1, {12, 3});
  request.recompute = {"none"};
  request.machine.gflops = 100;
  const PlannedLayout p = plan_layout(request, reshard::parse_layout("t1"));
  const double operations = flops_per_token(request.model, 32) * 12 * 32;
  EXPECT_NEAR(p.time.compute, operations / 100e9, 1e-9 * operations / 100e9);
  EXPECT_EQ(p.time.tensor + p.time.pipeline + p.time.bubble + p.time.data + p.time.recompute, 0);
  EXPECT_EQ(p.bubble, 0);
}

// Four equal stages, eight micro-batches: three of them idle for each, less with interleaving.
TEST(PlanTime, BubbleIsThatOfTheSchedule) {
  reshard::ModelConfig config = l1_model();
  config.layers = 8;
  config.vocab = 1;
  PlanRequest request = request_for(config, 4, {8, 1});
  request.recompute = {"none"};
  request.machine.node = {0, 1e9};
  const auto planned = [&](const char* layout) {
    return plan_layout(request, reshard::parse_layout(layout));
  };
  const PlannedLayout plain = planned("p4");
  EXPECT_DOUBLE_EQ(plain.bubble, 3 / 8.);
  EXPECT_NEAR(plain.time.bubble / plain.time.compute, 3 / 8., 0.01);
  const PlannedLayout interleaved = planned("p4v2");
  EXPECT_DOUBLE_EQ(interleaved.bubble, 3 / 16.);
  EXPECT_NEAR(interleaved.time.bubble / plain.time.bubble, 0.5, 0.01);
}

TEST(PlanTime, GroupsWithinANodeUseItsLinks) {
  const auto within = [](const char* layout, reshard::Axis axis) {
    return within_node(reshard::parse_layout(layout), axis, 8);
  };
  EXPECT_TRUE(within("t8p4d2", reshard::Axis::tp));
  EXPECT_FALSE(within("t16p4d2", reshard::Axis::tp));
  EXPECT_TRUE(within("t4p4d2", reshard::Axis::dp));
  EXPECT_FALSE(within("t4p4d4", reshard::Axis::dp));
  EXPECT_FALSE(within("t4p2d2", reshard::Axis::pp));
}

TEST(Planner, ListsEveryLegalLayoutOnceBestFirst) {
  PlanRequest request = request_for(g1_model(), 8, {24, 1});
  request.machine.memory_bytes = 3e6;
  const std::vector<PlannedLayout> planned = plan_layouts(request);
  std::set<std::string> seen;
  for (const PlannedLayout& p : planned) {
    EXPECT_TRUE(seen.insert(p.layout.string()).second) << p.layout.string();
    EXPECT_EQ(p.layout.ranks(), 8);
    EXPECT_TRUE(reshard::is_legal(p.layout, request.model, request.shape.batch)) << p.layout.string();
    EXPECT_EQ(p.fits, p.memory.total() <= 3'000'000) << p.layout.string();
    EXPECT_EQ(p.why.starts_with("does not fit: "), !p.fits) << p.why;
  }
  for (const char* layout : {"t1p1d8z0", "t1p1d8z3", "t4p2d1z0", "t4p2d1z0v2", "t2p4d1z0", "t2p2d2z1v2"})
    EXPECT_TRUE(seen.contains(layout)) << layout;
  EXPECT_FALSE(seen.contains("t8p1d1z0")) << "4 heads";
  EXPECT_FALSE(seen.contains("t4p2d1z1")) << "no ZeRO without data parallelism";
  for (std::size_t i = 1; i < planned.size(); ++i) {
    const PlannedLayout& a = planned[i - 1];
    const PlannedLayout& b = planned[i];
    ASSERT_GE(a.fits, b.fits);
    if (a.fits && b.fits) {
      EXPECT_LE(a.time.total(), b.time.total());
    }
    if (!a.fits) {
      EXPECT_LE(a.memory.total(), b.memory.total());
    }
  }
}

TEST(Planner, NoLegalLayoutNamesTheNearest) {
  const PlanRequest request = request_for(t1_model(), 7, {4, 1});
  try {
    plan_layouts(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("none of 7 ranks is legal, nearest legal layout"));
  }
}

// BLOOM was trained with 4-way tensor, 12-stage pipeline and 8-way data parallelism on 384 GPUs of 80 GiB
// (BigScience 2022); 70 layers over 12 stages are 10 of 6 and two of 5.
TEST(Planner, BloomAsItWasTrained) {
  PlanRequest request = preset_request("bloom-176b", 384);
  reshard::Layout layout = reshard::parse_layout("t4p12d8z1");
  layout.stages = {5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5};
  const PlannedLayout p = plan_layout(request, layout);
  EXPECT_TRUE(p.fits) << p.why;
  EXPECT_DOUBLE_EQ(p.bubble, 11 / 256.);
  const std::vector<reshard::RankSizes> sizes = reshard::rank_sizes(request.model, layout);
  ASSERT_EQ(sizes.size(), 384u);
  std::uint64_t written = 0, most = 0;
  for (const reshard::RankSizes& s : sizes) {
    written += s.writes;
    most = std::max(most, s.writes);
  }
  EXPECT_EQ(written, 176'247'271'424u);
  EXPECT_EQ(p.checkpoint_bytes, 12 * most);
  // A stage of 6 layers: a quarter of its matrices and what is held whole.
  const std::uint64_t h = 14336;
  const std::uint64_t layer = 12 * h * h / 4 + (3 * h + 4 * h) / 4 + 6 * h;
  EXPECT_EQ(sizes[64].holds, 6 * layer) << "third stage";
  EXPECT_EQ(sizes[0].holds, 5 * layer + 250880 / 4 * h + 2 * h) << "first stage";
  EXPECT_EQ(sizes[383].holds, 5 * layer + 250880 / 4 * h + 2 * h) << "last stage";
}

// MT-NLG: 8-way tensor, 35-stage pipeline, 8, 10 and 12 copies (Smith et al. 2022).
TEST(Planner, MtNlgAsItWasTrained) {
  for (const int copies : {8, 10, 12}) {
    PlanRequest request = preset_request("mt-nlg-530b", 280 * copies);
    const reshard::Layout layout = reshard::parse_layout("t8p35d" + std::to_string(copies) + "z1");
    const PlannedLayout p = plan_layout(request, layout);
    EXPECT_TRUE(p.fits) << p.why;
    EXPECT_DOUBLE_EQ(p.bubble, 34. / (1920 / copies));
    const auto sizes = reshard::rank_sizes(request.model, layout);
    const std::uint64_t h = 20480;
    const std::uint64_t layer = 12 * h * h / 8 + 7 * h / 8 + 6 * h;
    EXPECT_EQ(sizes[static_cast<std::size_t>(8 * copies)].holds, 3 * layer) << "second stage";
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0},
                              [](std::uint64_t sum, const auto& s) { return sum + s.writes; }),
              529'600'819'200u);
  }
}

TEST(Planner, SaysWhatDominatesAndWhatIsTooMuch) {
  const PlanRequest request = preset_request("llama-7b", 8);
  const PlannedLayout big = plan_layout(request, reshard::parse_layout("d8z0"));
  EXPECT_FALSE(big.fits);
  EXPECT_THAT(big.why, StartsWith("does not fit: "));
  EXPECT_THAT(big.why, HasSubstr(" of 80.0 GiB, most of it optimizer state (75.3 GiB)"));
  const PlannedLayout fine = plan_layout(request, reshard::parse_layout("d8z1"));
  EXPECT_TRUE(fine.fits) << fine.why;
  EXPECT_THAT(fine.why, HasSubstr(" % computing"));
}

}  // namespace
}  // namespace shardwright::trainer
