// The decoder on one rank against float64. The same over ranks: tests/dist/gpt2_parallel.cc.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <ostream>

#include "tests/unit/trainer/gpt2_reference.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

/// A model on one rank with test values.
struct Rank {
  Parameters parameters;
  Communicators comms;
  kernels::Stream stream{kernels::DeviceKind::cpu};
  Pipeline pipeline;

  Rank(const reshard::ModelSpec& spec, std::int64_t max_batch, std::int64_t max_positions)
      : parameters(spec, {}, 0),
        comms(make_communicators(make_self_communicator(), spec, {})),
        pipeline(parameters, comms, stream, options(max_batch, max_positions)) {
    fill_parameters(parameters);
    parameters.zero_gradients();
  }

  /// Forward and backward of samples [first, first + count); the loss.
  double run(const TestBatch& batch, std::int64_t first, std::int64_t count, float scale) {
    return pipeline.train([&](std::int64_t) { return batch.micro_batch(first, count); }, scale,
                          [](Action) {});
  }

  static PipelineOptions options(std::int64_t batch, std::int64_t positions) {
    PipelineOptions options;
    options.batch = batch;
    options.positions = positions;
    return options;
  }
};

void expect_gradients(const Rank& rank, const Gpt2Reference& reference, double tolerance = 1e-5) {
  for (const Parameter& p : rank.parameters.all())
    EXPECT_LT(gradient_error(reference, p, p.placed.holds, p.grad), tolerance) << p.spec->name;
}

struct Case {
  std::int64_t layers, hidden, heads, ffn, vocab, positions, batch;
  bool tied = true;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.layers << " x " << c.hidden << ", " << c.heads << " heads, ffn " << c.ffn << ", vocabulary "
       << c.vocab << ", " << c.batch << " x " << c.positions << (c.tied ? "" : ", untied");
}
class Gpt2 : public testing::TestWithParam<Case> {};

TEST_P(Gpt2, LossAndGradientMatchFloat64) {
  const Case c = GetParam();
  const auto spec = test_model(c.layers, c.hidden, c.heads, c.ffn, c.vocab, c.positions, c.tied);
  const TestBatch batch(c.vocab, c.batch, c.positions, true);
  Gpt2Reference reference(spec);
  const double expected = reference.run(batch.tokens, batch.targets, c.batch, c.positions, 0.25);
  Rank rank(spec, c.batch, c.positions);
  EXPECT_NEAR(rank.run(batch, 0, c.batch, 0.25F), expected, 1e-6 * expected);
  expect_gradients(rank, reference);
}

INSTANTIATE_TEST_SUITE_P(Models, Gpt2,
                         testing::Values(Case{2, 12, 3, 21, 33, 7, 3}, Case{4, 64, 4, 256, 97, 16, 2},
                                         Case{3, 40, 5, 37, 131, 1, 5}, Case{2, 48, 1, 5, 2, 33, 1},
                                         Case{2, 24, 3, 96, 33, 9, 2, false}));

TEST(Gpt2, SmallerMicroBatchInLargerBuffers) {
  const auto spec = test_model(2, 12, 3, 48, 33, 16);
  const TestBatch batch(33, 2, 5, false);
  Gpt2Reference reference(spec);
  const double expected = reference.run(batch.tokens, batch.targets, 2, 5, 1);
  Rank rank(spec, 4, 16);
  const TestBatch full(33, 4, 16, false);
  rank.run(full, 0, 4, 1);  // leaves its own numbers in the buffers
  rank.parameters.zero_gradients();
  EXPECT_NEAR(rank.run(batch, 0, 2, 1), expected, 1e-6 * expected);
  expect_gradients(rank, reference);
}

TEST(Gpt2, B150_MicroBatchesOfUnequalMasksAddUp) {
  const auto spec = test_model(2, 32, 4, 128, 97, 16);
  const TestBatch batch(97, 12, 16, true);
  Gpt2Reference reference(spec);
  const float scale = 1.0F / (12 * 16);
  const double expected = reference.run(batch.tokens, batch.targets, 12, 16, static_cast<double>(scale));
  for (std::int64_t micro : {1, 2, 3, 6, 12}) {
    SCOPED_TRACE(micro);
    Rank rank(spec, micro, 16);
    double loss = 0;
    for (std::int64_t first = 0; first < 12; first += micro) loss += rank.run(batch, first, micro, scale);
    EXPECT_NEAR(loss, expected, 1e-6 * expected);
    expect_gradients(rank, reference);
  }
}

TEST(Gpt2, AllTargetsMaskedGiveNoLossAndNoGradient) {
  const auto spec = test_model(2, 12, 3, 48, 33, 8);
  TestBatch batch(33, 2, 8, false);
  std::ranges::fill(batch.targets, -1);
  Rank rank(spec, 2, 8);
  EXPECT_EQ(rank.run(batch, 0, 2, 1), 0);
  for (const Parameter& p : rank.parameters.all())
    for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i) ASSERT_EQ(p.grad[i], 0) << p.spec->name;
}

TEST(Gpt2, SameBitsEachTime) {
  const auto spec = test_model(2, 24, 3, 96, 97, 16);
  const TestBatch batch(97, 3, 16, true);
  Rank a(spec, 3, 16), b(spec, 3, 16);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.run(batch, 0, 3, 1)),
            std::bit_cast<std::uint64_t>(b.run(batch, 0, 3, 1)));
  for (std::size_t t = 0; t < a.parameters.all().size(); ++t) {
    const Parameter &p = a.parameters.all()[t], &q = b.parameters.all()[t];
    for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(p.grad[i]), std::bit_cast<std::uint32_t>(q.grad[i]))
          << p.spec->name;
  }
}

TEST(Gpt2, NotANumberReachesTheLoss) {
  const auto spec = test_model(2, 12, 3, 48, 33, 8);
  const TestBatch batch(33, 2, 8, false);
  for (reshard::Role role : {reshard::Role::v, reshard::Role::down, reshard::Role::final_norm_bias}) {
    Rank rank(spec, 2, 8);
    rank.parameters.find(role, role == reshard::Role::final_norm_bias ? -1 : 1)->value[1] =
        std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(rank.run(batch, 0, 2, 1)));
  }
}

TEST(FlopsPerToken, CountsProductsThreeTimes) {
  const auto spec = test_model(6, 384, 6, 1536, 256, 256);
  const double layer = 2.0 * (4 * 384 * 384 + 2 * 384 * 1536) + 2.0 * 2 * 384 * 257 / 2;
  EXPECT_DOUBLE_EQ(flops_per_token(spec, 256), 3 * (6 * layer + 2.0 * 384 * 256));
}

}  // namespace
}  // namespace shardwright::trainer
