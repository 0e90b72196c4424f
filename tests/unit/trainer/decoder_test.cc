// The decoder against float64: whole on one rank, and in pipeline stages that hand each other their
// activations, all in one process. Over tensor-parallel ranks and under the real runtime: tests/dist/.
#include "trainer/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <vector>

#include "tests/unit/trainer/decoder_reference.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

constexpr std::uint64_t kSeed = 0x9ABCDEF012345678;

/// One rank of a pipeline with test values.
struct Rank {
  Parameters parameters;
  std::unique_ptr<Communicator> self = make_self_communicator();
  TensorGroup group{*self, false};
  kernels::Stream stream{kernels::DeviceKind::cpu};
  DataParallel data{parameters, *self, stream};
  DecoderShape shape;
  Workspace work;
  std::vector<DecoderStage> stages;

  Rank(const reshard::ModelSpec& spec, const reshard::Layout& layout, int rank, std::int64_t max_rows,
       std::int64_t buffers)
      : parameters(spec, layout, rank),
        shape(decoder_shape(parameters, group, max_rows)),
        work(shape, group.spread()) {
    fill_parameters(parameters);
    parameters.zero_gradients();
    for (const reshard::StageLayers& stage : reshard::virtual_stages(layout, spec, rank))
      stages.emplace_back(DecoderParts{parameters, data, group, stream, shape, work, kSeed}, stage, buffers);
  }
};

/// All ranks of a pipeline; one rank is the whole model.
class Copy {
 public:
  explicit Copy(const reshard::ModelSpec& spec, std::int64_t max_rows, const reshard::Layout& layout = {},
                std::int64_t buffers = 1)
      : ranks_(static_cast<std::size_t>(layout.ranks())) {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      ranks_[r] = std::make_unique<Rank>(spec, layout, static_cast<int>(r), max_rows, buffers);
    for (std::size_t chunk = 0; chunk < ranks_.front()->stages.size(); ++chunk)
      for (const auto& rank : ranks_) stages_.push_back(&rank->stages[chunk]);
  }

  /// Samples [first, first + count) of the batch; the loss.
  double forward(const TestBatch& batch, std::int64_t first, std::int64_t count, std::int64_t buffer = 0,
                 bool training = true) {
    double loss = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      stages_[s]->begin(buffer, batch.micro_batch(first, count));
      if (s > 0) std::ranges::copy(stages_[s - 1]->output(buffer), stages_[s]->input(buffer).begin());
      loss += stages_[s]->forward(buffer, training);
    }
    return loss;
  }
  void backward(float scale, std::int64_t buffer = 0) {
    for (std::size_t s = stages_.size(); s-- > 0;) {
      stages_[s]->backward(buffer, scale);
      if (s > 0)
        std::ranges::copy(stages_[s]->input_gradient(buffer),
                          stages_[s - 1]->output_gradient(buffer).begin());
    }
  }
  double run(const TestBatch& batch, std::int64_t first, std::int64_t count, float scale) {
    const double loss = forward(batch, first, count);
    backward(scale);
    return loss;
  }

  Rank& rank(std::size_t r) { return *ranks_[r]; }

  /// Gradients of a tensor that several stages hold are sums of theirs.
  void expect_gradients(const DecoderReference& reference, double tolerance = 1e-5) {
    std::vector<std::vector<float>> sums(reference.gradients.size());
    std::vector<const Parameter*> holder(sums.size());
    for (const auto& rank : ranks_) {
      for (const Parameter& p : rank->parameters.all()) {
        std::vector<float>& sum = sums[p.placed.tensor];
        sum.resize(p.placed.holds.elements());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += p.grad[i];
        holder[p.placed.tensor] = &p;
      }
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      ASSERT_NE(holder[t], nullptr) << "nobody holds tensor " << t;
      EXPECT_LT(gradient_error(reference, *holder[t], holder[t]->placed.holds, sums[t].data()), tolerance)
          << holder[t]->spec->name;
    }
  }

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<DecoderStage*> stages_;  // in model order
};

struct ModelCase {
  const char* arch;
  TestShape shape;
  std::int64_t batch;
  bool tied;
  double dropout = 0;
  reshard::ModelSpec spec() const { return test_model(arch, shape, tied, dropout); }
};
void PrintTo(const ModelCase& c, std::ostream* out) {
  *out << c.arch << ' ' << c.shape.layers << " x " << c.shape.hidden << ", " << c.shape.heads << " heads, "
       << c.shape.kv_heads << " KV heads, ffn " << c.shape.ffn << ", vocabulary " << c.shape.vocab << ", "
       << c.batch << " x " << c.shape.seq_len << (c.tied ? ", tied" : ", untied")
       << (c.dropout > 0 ? ", dropout" : "");
}

class Decoder : public testing::TestWithParam<ModelCase> {};

TEST_P(Decoder, LossAndGradientMatchFloat64) {
  const ModelCase c = GetParam();
  const std::int64_t positions = c.shape.seq_len;
  const TestBatch batch(c.shape.vocab, c.batch, positions, true);
  DecoderReference reference(c.spec());
  if (c.dropout > 0) reference.mask = philox_mask(c.dropout, kSeed);
  const double expected = reference.run(batch.tokens, batch.targets, c.batch, positions, 0.25);
  Copy model(c.spec(), c.batch * positions);
  EXPECT_NEAR(model.run(batch, 0, c.batch, 0.25F), expected, 1e-6 * expected);
  model.expect_gradients(reference);
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Decoder,
                         testing::Values(ModelCase{"gpt2", {2, 12, 3, 3, 21, 33, 7}, 3, true},
                                         ModelCase{"gpt2", {4, 64, 4, 4, 256, 97, 16}, 2, true},
                                         ModelCase{"gpt2", {3, 40, 5, 5, 37, 131, 1}, 5, true},
                                         ModelCase{"gpt2", {2, 48, 1, 1, 5, 2, 33}, 1, true},
                                         ModelCase{"gpt2", {2, 24, 3, 3, 96, 33, 9}, 2, false},
                                         ModelCase{"gpt2", {4, 64, 4, 4, 256, 97, 16}, 3, true, 0.1},
                                         ModelCase{"gpt2", {2, 12, 3, 3, 21, 33, 7}, 3, false, 0.5}));
// Heads that are a power of two, and that are none.
INSTANTIATE_TEST_SUITE_P(Bloom, Decoder,
                         testing::Values(ModelCase{"bloom", {2, 12, 3, 3, 21, 33, 7}, 3, true},
                                         ModelCase{"bloom", {4, 64, 8, 8, 256, 97, 16}, 2, true},
                                         ModelCase{"bloom", {2, 48, 12, 12, 5, 2, 33}, 1, false},
                                         ModelCase{"bloom", {3, 40, 5, 5, 37, 131, 1}, 5, true},
                                         ModelCase{"bloom", {2, 30, 6, 6, 21, 33, 70}, 2, false, 0.3}));
INSTANTIATE_TEST_SUITE_P(Llama, Decoder,
                         testing::Values(ModelCase{"llama", {2, 12, 3, 3, 21, 33, 7}, 3, false},
                                         ModelCase{"llama", {3, 40, 5, 5, 105, 131, 9}, 2, false},
                                         ModelCase{"llama", {2, 96, 12, 4, 176, 203, 16}, 2, false},
                                         ModelCase{"llama", {2, 64, 8, 2, 96, 64, 17}, 2, true},
                                         ModelCase{"llama", {2, 32, 8, 1, 24, 64, 5}, 3, false},
                                         ModelCase{"llama", {2, 20, 1, 1, 7, 2, 33}, 1, true},
                                         ModelCase{"llama", {2, 12, 3, 1, 1, 33, 1}, 5, false}));

struct PipelineCase {
  ModelCase model;
  reshard::Layout layout;
};
void PrintTo(const PipelineCase& c, std::ostream* out) {
  PrintTo(c.model, out);
  *out << " in " << c.layout.string();
}

class DecoderPipeline : public testing::TestWithParam<PipelineCase> {};

// Backward runs in another order than forward, as in a schedule, so that what is kept of one micro-batch must
// not depend on what came after it.
TEST_P(DecoderPipeline, StagesTogetherAreTheModel) {
  const auto& [c, layout] = GetParam();
  const std::int64_t positions = c.shape.seq_len;
  const TestBatch batch(c.shape.vocab, 6, positions, true);
  DecoderReference reference(c.spec());
  if (c.dropout > 0) reference.mask = philox_mask(c.dropout, kSeed);
  const double expected = reference.run(batch.tokens, batch.targets, 6, positions, 0.5);
  Copy model(c.spec(), 2 * positions, layout, 3);
  double loss = model.forward(batch, 0, 2, 0) + model.forward(batch, 2, 2, 2);
  model.backward(0.5F, 0);
  loss += model.forward(batch, 4, 2, 1);
  model.backward(0.5F, 1);
  model.backward(0.5F, 2);
  EXPECT_NEAR(loss, expected, 1e-6 * expected);
  model.expect_gradients(reference);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DecoderPipeline,
    testing::Values(
        PipelineCase{{"gpt2", {4, 24, 3, 3, 31, 33, 7}, 6, true}, {}},
        PipelineCase{{"gpt2", {4, 24, 3, 3, 31, 33, 7}, 6, true, 0.2}, {.pp = 2, .vpp = 2}},
        PipelineCase{{"gpt2", {5, 24, 3, 3, 31, 33, 7}, 6, false, 0.2}, {.pp = 3, .stages = {1, 3, 1}}},
        PipelineCase{{"bloom", {4, 24, 3, 3, 31, 33, 7}, 6, true, 0.2}, {.pp = 2, .vpp = 2}},
        PipelineCase{{"bloom", {5, 24, 6, 6, 31, 33, 7}, 6, false}, {.pp = 3, .stages = {1, 3, 1}}},
        PipelineCase{{"llama", {7, 40, 5, 5, 105, 131, 5}, 6, false}, {.pp = 3, .vpp = 2}},
        PipelineCase{{"llama", {4, 24, 6, 2, 31, 33, 7}, 6, true}, {.pp = 4}}));

TEST(Decoder, SmallerMicroBatchInLargerBuffers) {
  for (const char* arch : {"gpt2", "bloom", "llama"}) {
    const auto spec = test_model(arch, {2, 12, 3, 3, 48, 33, 16}, true);
    const TestBatch batch(33, 2, 5, false);
    DecoderReference reference(spec);
    const double expected = reference.run(batch.tokens, batch.targets, 2, 5, 1);
    Copy model(spec, 4 * 16);
    const TestBatch full(33, 4, 16, false);
    model.run(full, 0, 4, 1);  // leaves its own numbers in the buffers
    model.rank(0).parameters.zero_gradients();
    EXPECT_NEAR(model.run(batch, 0, 2, 1), expected, 1e-6 * expected);
    model.expect_gradients(reference);
  }
}

// As training runs it, with both schedules: the same loss and gradient however a batch is cut.
TEST(Decoder, B150_MicroBatchesOfUnequalMasksAddUp) {
  const auto spec = test_model("gpt2", {2, 32, 4, 4, 128, 97, 16}, true, 0.1);
  const TestBatch batch(97, 12, 16, true);
  DecoderReference reference(spec);
  reference.mask = philox_mask(0.1, kSeed);
  const float scale = 1.0F / (12 * 16);
  const double expected = reference.run(batch.tokens, batch.targets, 12, 16, static_cast<double>(scale));
  for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
    for (const std::int64_t micro : {1, 2, 3, 6, 12}) {
      SCOPED_TRACE(micro);
      Parameters parameters(spec, {}, 0);
      fill_parameters(parameters);
      parameters.zero_gradients();
      Communicators comms = make_communicators(make_self_communicator(), spec, {});
      kernels::Stream stream{kernels::DeviceKind::cpu};
      PipelineOptions options;
      options.schedule = schedule;
      options.micro_batches = 12 / micro;
      options.batch = micro;
      options.positions = 16;
      options.seed = kSeed;
      DataParallel data(parameters, *comms.data, stream);
      Pipeline pipeline(parameters, comms, data, stream, options);
      const auto source = [&](std::int64_t number) { return batch.micro_batch(number * micro, micro); };
      EXPECT_NEAR(pipeline.train(source, scale, [](Action) {}), expected, 1e-6 * expected);
      for (const Parameter& p : parameters.all())
        EXPECT_LT(gradient_error(reference, p, p.placed.holds, p.grad), 1e-5) << p.spec->name;
    }
  }
}

TEST(Decoder, EvaluationDropsNothing) {
  const auto spec = test_model("gpt2", {2, 12, 3, 3, 48, 33, 8}, true, 0.5);
  const TestBatch batch(33, 2, 8, false);
  const double expected = DecoderReference(spec).run(batch.tokens, batch.targets, 2, 8, 1);
  Copy model(spec, 2 * 8);
  EXPECT_NEAR(model.forward(batch, 0, 2, 0, false), expected, 1e-6 * expected);
  EXPECT_GT(std::abs(model.forward(batch, 0, 2, 0, true) - expected), 1e-3 * expected);
}

TEST(Decoder, AllTargetsMaskedGiveNoLossAndNoGradient) {
  const auto spec = test_model("llama", {2, 12, 3, 1, 48, 33, 8}, true);
  TestBatch batch(33, 2, 8, false);
  std::ranges::fill(batch.targets, -1);
  Copy model(spec, 2 * 8);
  EXPECT_EQ(model.run(batch, 0, 2, 1), 0);
  for (const Parameter& p : model.rank(0).parameters.all())
    for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i) ASSERT_EQ(p.grad[i], 0) << p.spec->name;
}

TEST(Decoder, SameBitsEachTime) {
  for (const char* arch : {"gpt2", "bloom", "llama"}) {
    const auto spec = test_model(arch, {2, 24, 3, 3, 96, 97, 16}, true);
    const TestBatch batch(97, 3, 16, true);
    Copy a(spec, 3 * 16), b(spec, 3 * 16);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.run(batch, 0, 3, 1)),
              std::bit_cast<std::uint64_t>(b.run(batch, 0, 3, 1)));
    for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
      const Parameter &p = a.rank(0).parameters.all()[t], &q = b.rank(0).parameters.all()[t];
      for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(p.grad[i]), std::bit_cast<std::uint32_t>(q.grad[i]))
            << p.spec->name;
    }
  }
}

TEST(Decoder, NotANumberReachesTheLoss) {
  using reshard::Role;
  for (const char* arch : {"gpt2", "bloom", "llama"}) {
    const auto spec = test_model(arch, {2, 12, 3, 3, 48, 33, 8}, true);
    const TestBatch batch(33, 2, 8, false);
    for (const Role role : {Role::v, Role::down, Role::final_norm}) {
      Copy model(spec, 2 * 8);
      model.rank(0).parameters.find(role, role == Role::final_norm ? -1 : 1)->value.f32()[1] =
          std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(std::isfinite(model.run(batch, 0, 2, 1)));
    }
  }
}

TEST(FlopsPerToken, CountsProductsThreeTimes) {
  const auto spec = test_model(6, 384, 6, 1536, 256, 256);
  const double layer = 2.0 * (4 * 384 * 384 + 2 * 384 * 1536) + 2.0 * 2 * 384 * 257 / 2;
  EXPECT_DOUBLE_EQ(flops_per_token(spec, 256), 3 * (6 * layer + 2.0 * 384 * 256));
  const auto llama = test_model("llama", {6, 384, 6, 2, 1024, 256, 256}, false);
  const double gated = 2.0 * (2 * 384 * 384 + 2 * 128 * 384 + 3 * 384 * 1024) + 2.0 * 2 * 384 * 257 / 2;
  EXPECT_DOUBLE_EQ(flops_per_token(llama, 256), 3 * (6 * gated + 2.0 * 384 * 256));
}

}  // namespace
}  // namespace shardwright::trainer
