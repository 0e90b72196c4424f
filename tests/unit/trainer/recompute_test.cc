// Activations that are computed again give the bits of those that are kept, in less memory; and a decoder
// whose products read 16 bits stays near float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "tests/unit/trainer/decoder_reference.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

using kernels::ElementType;

constexpr std::uint64_t kSeed = 0x9ABCDEF012345678;

struct Result {
  double loss = 0;
  std::vector<float> gradients;
  std::size_t allocated = 0;  // for activations
  std::int64_t counted = 0;
};

/// One step of a batch of 6 in micro-batches of 2, on one rank.
Result train(const reshard::ModelSpec& spec, ElementType type, Recompute recompute, const TestBatch& batch,
             const DecoderReference* reference = nullptr, double tolerance = 0) {
  const reshard::Layout layout;
  Parameters parameters(spec, layout, 0, type);
  fill_parameters(parameters);
  parameters.zero_gradients();
  Communicators comms = make_communicators(make_self_communicator(), spec, layout);
  kernels::Stream stream(kernels::DeviceKind::cpu);
  DataParallel data(parameters, *comms.data, stream);
  data.spread_values();
  PipelineOptions options;
  options.micro_batches = 3;
  options.batch = 2;
  options.positions = batch.positions;
  options.seed = kSeed;
  options.recompute = recompute;
  Result result;
  kernels::reset_memory_peaks();
  Pipeline pipeline(parameters, comms, data, stream, options);
  result.allocated = kernels::memory_peaks()[static_cast<std::size_t>(kernels::MemoryUse::activation)];
  const DecoderShape shape =
      decoder_shape(spec, layout, 0, false, options.batch * options.positions, type, recompute);
  const reshard::StageLayers stage = reshard::virtual_stages(layout, spec, 0).front();
  result.counted = activation_bytes(shape, stage) + workspace_bytes(shape, false);
  const auto source = [&](std::int64_t micro) { return batch.micro_batch(2 * micro, 2); };
  result.loss = pipeline.train(source, 0.25F, [](Action) {});
  for (const Parameter& p : parameters.all()) {
    result.gradients.insert(result.gradients.end(), p.grad, p.grad + p.placed.holds.elements());
    if (reference != nullptr) {
      EXPECT_LT(gradient_error(*reference, p, p.placed.holds, p.grad), tolerance) << p.spec->name;
    }
  }
  return result;
}

// Odd everywhere, with every kind of layer: biases, dropout, ALiBi, grouped queries, gates.
std::vector<reshard::ModelSpec> models() {
  return {test_model("gpt2", {3, 15, 3, 3, 21, 97, 7}, true, 0.2),
          test_model("bloom", {3, 15, 5, 5, 21, 97, 7}, true, 0.2),
          test_model("llama", {2, 24, 6, 2, 19, 33, 9}, false)};
}

TEST(Recompute, SameBitsInLessMemory) {
  for (const reshard::ModelSpec& spec : models()) {
    const TestBatch batch(spec.config.vocab, 6, spec.config.seq_len, true);
    for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
      const Result none = train(spec, type, Recompute::none, batch);
      const Result selective = train(spec, type, Recompute::selective, batch);
      const Result full = train(spec, type, Recompute::full, batch);
      EXPECT_GT(std::ranges::max(none.gradients), 0.0F);
      for (const Result& other : {selective, full}) {
        EXPECT_EQ(other.loss, none.loss);
        EXPECT_EQ(other.gradients, none.gradients);
      }
      EXPECT_LT(selective.allocated, none.allocated);
      EXPECT_LT(full.allocated, selective.allocated);
      for (const Result& r : {none, selective, full})
        EXPECT_EQ(static_cast<std::int64_t>(r.allocated), r.counted);
    }
  }
}

TEST(Recompute, NamesOfTheModes) {
  EXPECT_EQ(recompute_named("none"), Recompute::none);
  EXPECT_EQ(recompute_named("selective"), Recompute::selective);
  EXPECT_EQ(recompute_named("full"), Recompute::full);
  EXPECT_THROW(recompute_named("some"), Error);
}

// What a rank of a larger layout allocates is counted without allocating it: odd slices, several chunks.
TEST(Recompute, ActivationBytesOfTheRanksOfALayout) {
  for (const char* arch : {"gpt2", "bloom"}) {
    const reshard::ModelSpec spec = test_model(arch, {6, 15, 5, 5, 22, 97, 7}, true);
    const reshard::Layout layout = reshard::parse_layout("t2p3");
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        const DecoderShape shape = decoder_shape(spec, layout, rank, true, 21, ElementType::bf16, recompute);
        EXPECT_EQ(shape.max_local_rows, 11);
        for (const reshard::StageLayers& stage : reshard::virtual_stages(layout, spec, rank)) {
          kernels::reset_memory_peaks();
          const Workspace work(shape, true);
          const StageActivations kept(shape, stage, work.recomputed);
          EXPECT_EQ(static_cast<std::int64_t>(
                        kernels::memory_peaks()[static_cast<std::size_t>(kernels::MemoryUse::activation)]),
                    activation_bytes(shape, stage) + workspace_bytes(shape, true));
        }
      }
    }
  }
}

TEST(MixedPrecision, LossAndGradientsNearFloat64) {
  for (const reshard::ModelSpec& spec : models()) {
    const TestBatch batch(spec.config.vocab, 6, spec.config.seq_len, true);
    DecoderReference reference(spec);
    if (spec.config.dropout > 0) reference.mask = philox_mask(spec.config.dropout, kSeed);
    const double expected = reference.run(batch.tokens, batch.targets, 6, spec.config.seq_len, 0.25);
    // Relative to a tensor's norm; roundings of 2^-9 and 2^-12 on average, several a layer.
    EXPECT_NEAR(train(spec, ElementType::bf16, Recompute::none, batch, &reference, 5e-2).loss, expected,
                3e-3 * expected);
    EXPECT_NEAR(train(spec, ElementType::f16, Recompute::none, batch, &reference, 1e-2).loss, expected,
                4e-4 * expected);
  }
}

}  // namespace
}  // namespace shardwright::trainer
