#include "trainer/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "trainer/replicas.h"

namespace shardwright::trainer {
namespace {

reshard::ModelSpec tiny() {
  reshard::ModelConfig config;
  config.layers = 1;
  config.hidden = 12;
  config.heads = 3;
  config.ffn = 21;
  config.vocab = 33;
  config.seq_len = 8;
  return reshard::build_model(config);
}

class OptimizerTest : public testing::Test {
 protected:
  OptimizerTest() {
    parameters_.initialise(3);
    float next = 0;
    for (Parameter& p : parameters_.all())
      for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i) p.grad[i] = std::sin(next += 1.0F);
  }
  double norm_by_hand() const {
    double squares = 0;
    for (const Parameter& p : parameters_.all())
      for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i) squares += double{p.grad[i]} * p.grad[i];
    return std::sqrt(squares);
  }

  Parameters parameters_{tiny(), reshard::Layout{}, 0};
  Communicators comms_ = make_communicators(make_self_communicator(), parameters_.model(), {});
  kernels::Stream stream_{kernels::DeviceKind::cpu};
  DataParallel data_{parameters_, *comms_.data, stream_};
  Config::Optim hyper_;
};

TEST_F(OptimizerTest, NormCountsEachElementOnceAndKeepsWords) {
  Optimizer optimizer(parameters_, comms_, data_, stream_, hyper_, false);
  std::vector<double> words{1.5, -2};
  const StepResult result = optimizer.norm(words);
  EXPECT_NEAR(result.grad_norm, norm_by_hand(), 1e-9);
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(words, (std::vector<double>{1.5, -2}));
}

TEST_F(OptimizerTest, OneBadElementMakesTheNormNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    parameters_.all().back().grad[0] = bad;
    EXPECT_FALSE(Optimizer(parameters_, comms_, data_, stream_, hyper_, false).norm({}).finite);
  }
}

TEST_F(OptimizerTest, AdamWByHandWithClippingAndDecayOfMatricesOnly) {
  hyper_.clip = 0.5;
  hyper_.weight_decay = 0.3;
  Optimizer optimizer(parameters_, comms_, data_, stream_, hyper_, false);
  std::map<std::string, std::pair<double, double>> before;  // value, gradient of element 1
  for (const Parameter& p : parameters_.all()) before[p.spec->name] = {p.value.f32()[1], p.grad[1]};
  const double lr = 0.01;
  std::map<std::string, int> told;
  const StepResult norm = optimizer.norm({});
  optimizer.update(norm, lr, 1, [&](const Parameter& p, const char* kind, const ckpt::Box& box) {
    ++told[kind];
    EXPECT_EQ(box, p.placed.holds);
  });
  const int tensors = static_cast<int>(parameters_.all().size());
  EXPECT_EQ(told,
            (std::map<std::string, int>{{"param", tensors}, {"exp_avg", tensors}, {"exp_avg_sq", tensors}}));
  const double scale = 0.5 / norm.grad_norm;
  for (const Parameter& p : parameters_.all()) {
    const auto [value, raw] = before[p.spec->name];
    const double g = raw * scale;
    const double decay = p.spec->decay ? 0.3 : 0.0;
    // At step 1 the bias corrections leave g and g squared.
    const double expected = value - lr * (g / (std::abs(g) + hyper_.eps) + decay * value);
    EXPECT_NEAR(p.value.f32()[1], expected, 1e-6) << p.spec->name;
    EXPECT_NEAR(p.exp_avg[1], (1 - hyper_.beta1) * g, 1e-7);
    EXPECT_NEAR(p.exp_avg_sq[1], (1 - hyper_.beta2) * g * g, 1e-8);
  }
}

TEST(OptimizerValues, OfSixteenBitsAreToldOfBeforeTheyChange) {
  Parameters parameters(tiny(), reshard::Layout{}, 0, kernels::ElementType::bf16);
  Communicators comms = make_communicators(make_self_communicator(), parameters.model(), {});
  kernels::Stream stream(kernels::DeviceKind::cpu);
  DataParallel data(parameters, *comms.data, stream);
  parameters.initialise(3);
  data.spread_values();
  const auto bits = [](const Parameter& p) {
    const auto* first = static_cast<const std::uint16_t*>(p.value.data);
    return std::vector<std::uint16_t>(first, first + p.placed.holds.elements());
  };
  std::map<std::string, std::vector<std::uint16_t>> before;
  for (const Parameter& p : parameters.all()) {
    std::fill_n(p.grad, p.placed.holds.elements(), 1.0F);
    if (p.value.type == kernels::ElementType::bf16) before[p.spec->name] = bits(p);
  }
  ASSERT_LT(before.size(), parameters.all().size()) << "vectors stay fp32";
  Optimizer optimizer(parameters, comms, data, stream, {}, false);
  std::size_t told = 0;
  optimizer.update(optimizer.norm({}), 0.1, 1,
                   [&](const Parameter& p, const char* kind, const ckpt::Box& box) {
                     if (kind != std::string(kValue)) return;
                     ++told;
                     EXPECT_EQ(box, p.placed.holds);
                     EXPECT_EQ(bits(p), before.at(p.spec->name)) << p.spec->name;
                   });
  EXPECT_EQ(told, before.size());
  for (const Parameter& p : parameters.all())
    if (before.contains(p.spec->name)) {
      EXPECT_NE(bits(p), before[p.spec->name]) << p.spec->name;
    }
}

TEST(LearningRate, WarmsUpThenFollowsItsSchedule) {
  Config::Optim hyper;
  hyper.lr = 1e-3;
  hyper.min_lr = 1e-4;
  hyper.warmup_steps = 10;
  for (const char* schedule : {"cosine", "linear", "constant", "wsd"}) {
    hyper.schedule = schedule;
    EXPECT_DOUBLE_EQ(learning_rate(hyper, 1, 110), 1e-4) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(hyper, 7, 110), 7e-4) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(hyper, 10, 110), 1e-3) << schedule;
  }
  hyper.schedule = "cosine";
  EXPECT_NEAR(learning_rate(hyper, 60, 110), 5.5e-4, 1e-12);
  EXPECT_NEAR(learning_rate(hyper, 110, 110), 1e-4, 1e-12);
  hyper.schedule = "linear";
  EXPECT_NEAR(learning_rate(hyper, 35, 110), 7.75e-4, 1e-12);
  EXPECT_NEAR(learning_rate(hyper, 110, 110), 1e-4, 1e-12);
  hyper.schedule = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(hyper, 110, 110), 1e-3);
  hyper.schedule = "wsd";
  EXPECT_DOUBLE_EQ(learning_rate(hyper, 99, 110), 1e-3);
  EXPECT_NEAR(learning_rate(hyper, 110, 110), 1e-4, 1e-12);
}

TEST(LearningRate, NoWarmupAndShortRuns) {
  Config::Optim hyper;
  hyper.warmup_steps = 0;
  for (const char* schedule : {"cosine", "linear", "constant", "wsd"}) {
    hyper.schedule = schedule;
    for (std::int64_t step = 1; step <= 3; ++step) {
      const double lr = learning_rate(hyper, step, 3);
      EXPECT_GE(lr, 0) << schedule;
      EXPECT_LE(lr, hyper.lr) << schedule;
    }
  }
  // Warm-up longer than the run.
  hyper.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(learning_rate(hyper, 3, 3), 0.3 * hyper.lr);
}

}  // namespace
}  // namespace shardwright::trainer
