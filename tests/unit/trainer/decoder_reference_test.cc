// The float64 decoder that others are measured against, against finite differences of its own loss.
#include "tests/unit/trainer/decoder_reference.h"

#include <gtest/gtest.h>

#include <ostream>

namespace shardwright::trainer {
namespace {

struct ReferenceCase {
  const char* arch;
  TestShape shape;
  bool tied;
  double dropout;
};
void PrintTo(const ReferenceCase& c, std::ostream* out) {
  *out << c.arch << " of " << c.shape.heads << " heads, " << c.shape.kv_heads << " KV heads"
       << (c.tied ? ", tied" : ", untied") << (c.dropout > 0 ? ", dropout" : "");
}

/// A mask of no meaning, different in each place.
DecoderReference::Mask some_mask(double p) {
  return [p](DropoutSite site, std::int64_t layer, std::uint64_t index) {
    const auto stream = static_cast<std::uint64_t>(2000 + 10 * layer) + static_cast<std::uint64_t>(site);
    return (test_uniform(stream, index) + 1) / 2 < p ? 0 : 1 / (1 - p);
  };
}

class ReferenceSlope : public testing::TestWithParam<ReferenceCase> {};

TEST_P(ReferenceSlope, GradientIsTheSlopeOfTheLoss) {
  const ReferenceCase c = GetParam();
  const auto spec = test_model(c.arch, c.shape, c.tied);
  const std::int64_t positions = c.shape.seq_len;
  const TestBatch batch(c.shape.vocab, 2, positions, true);
  DecoderReference reference(spec);
  if (c.dropout > 0) reference.mask = some_mask(c.dropout);
  const auto loss = [&] {
    return DecoderReference(reference).run(batch.tokens, batch.targets, 2, positions, 1, 3);
  };
  DecoderReference analytic = reference;
  analytic.run(batch.tokens, batch.targets, 2, positions, 1, 3);
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    const std::size_t n = reference.parameters[t].size();
    const auto largest = std::ranges::max_element(
        analytic.gradients[t], [](double a, double b) { return std::abs(a) < std::abs(b); });
    const auto steepest = static_cast<std::size_t>(largest - analytic.gradients[t].begin());
    for (const std::size_t i : {std::size_t{0}, n / 3, n - 1, steepest}) {
      double& x = reference.parameters[t][i];
      const double before = x, h = 1e-5;
      x = before + h;
      const double above = loss();
      x = before - h;
      const double below = loss();
      x = before;
      EXPECT_NEAR(analytic.gradients[t][i], (above - below) / (2 * h), 2e-8 * norm_of(analytic.gradients))
          << spec.tensors[t].name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decoders, ReferenceSlope,
                         testing::Values(ReferenceCase{"gpt2", {2, 12, 3, 3, 21, 33, 7}, true, 0},
                                         ReferenceCase{"gpt2", {2, 12, 3, 3, 21, 17, 7}, false, 0.3},
                                         ReferenceCase{"bloom", {2, 18, 6, 6, 21, 33, 7}, true, 0},
                                         ReferenceCase{"bloom", {2, 15, 5, 5, 21, 17, 7}, false, 0.3},
                                         ReferenceCase{"llama", {2, 12, 3, 3, 21, 33, 7}, false, 0},
                                         ReferenceCase{"llama", {2, 24, 6, 2, 17, 19, 6}, true, 0},
                                         ReferenceCase{"llama", {2, 16, 4, 1, 11, 19, 5}, false, 0.3}));

// What a slope cannot see is whether the model is the one meant. The number is that of the arithmetic of
// Hugging Face's modeling_llama (rotate_half, repeat_kv), written in NumPy for these values.
TEST(DecoderReference, LlamaIsTheOneThatCheckpointsAreMadeFor) {
  const auto spec = test_model("llama", {2, 24, 6, 2, 17, 19, 6}, false);
  const TestBatch batch(19, 2, 6, true);
  EXPECT_NEAR(DecoderReference(spec).run(batch.tokens, batch.targets, 2, 6, 1), 33.54838593478911, 1e-10);
}

// The same for modeling_bloom, whose build_alibi_tensor gives slope * key: equal, since softmax does not see
// what all keys of a query have in common.
TEST(DecoderReference, BloomIsTheOneThatCheckpointsAreMadeFor) {
  const TestBatch batch(19, 2, 6, true);
  const auto loss = [&](bool tied) {
    const auto spec = test_model("bloom", {2, 24, 6, 6, 17, 19, 6}, tied);
    return DecoderReference(spec).run(batch.tokens, batch.targets, 2, 6, 1);
  };
  EXPECT_NEAR(loss(false), 34.627043200429995, 1e-10);
  EXPECT_NEAR(loss(true), 46.82745650388545, 1e-10);
}

TEST(DecoderReference, NoLossDependsOnLaterTokens) {
  for (const char* arch : {"gpt2", "bloom", "llama"}) {
    const auto spec = test_model(arch, {2, 24, 6, std::string(arch) == "llama" ? 2 : 6, 17, 19, 6}, false);
    TestBatch batch(19, 1, 6, false);
    for (std::int64_t position = 0; position < 6; ++position) {
      TestBatch one = batch;
      for (std::int64_t t = 0; t < 6; ++t) {
        if (t != position) one.targets[static_cast<std::size_t>(t)] = -1;
      }
      const auto loss = [&] { return DecoderReference(spec).run(one.tokens, one.targets, 1, 6, 1); };
      const double before = loss();
      for (std::int64_t t = position + 1; t < 6; ++t) {
        std::int32_t& token = one.tokens[static_cast<std::size_t>(t)];
        token = (token + 1) % 19;
      }
      EXPECT_EQ(loss(), before) << arch << " " << position;
    }
  }
}

}  // namespace
}  // namespace shardwright::trainer
