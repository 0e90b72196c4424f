#include "trainer/loss_scale.h"

#include <gtest/gtest.h>

namespace shardwright::trainer {
namespace {

Config::Train fp16() {
  Config::Train train;
  train.dtype = "fp16";
  train.loss_scale = 1024;
  train.loss_scale_window = 3;
  return train;
}

TrainingState fresh(const Config::Train& train) {
  TrainingState state;
  state.dtype = train.dtype;
  state.loss_scale = first_loss_scale(train);
  return state;
}

TEST(LossScale, DoublesAfterAWindowOfFiniteStepsAndHalvesAtAnOverflow) {
  const Config::Train train = fp16();
  TrainingState state = fresh(train);
  for (int step = 0; step < 2; ++step) grow_loss_scale(state, train);
  EXPECT_EQ(state.loss_scale, 1024);
  grow_loss_scale(state, train);
  EXPECT_EQ(state.loss_scale, 2048);
  EXPECT_EQ(state.loss_scale_steps, 0);
  grow_loss_scale(state, train);
  EXPECT_TRUE(shrink_loss_scale(state));
  EXPECT_EQ(state.loss_scale, 1024);
  EXPECT_EQ(state.loss_scale_steps, 0);  // the window begins anew
}

TEST(LossScale, AtItsLeastAnOverflowIsNotItsFault) {
  Config::Train train = fp16();
  train.loss_scale = 2;
  TrainingState state = fresh(train);
  EXPECT_TRUE(shrink_loss_scale(state));
  EXPECT_EQ(state.loss_scale, 1);
  EXPECT_FALSE(shrink_loss_scale(state));
  EXPECT_EQ(state.loss_scale, 1);
}

TEST(LossScale, OtherTypesHaveNone) {
  for (const char* dtype : {"fp32", "bf16"}) {
    Config::Train train = fp16();
    train.dtype = dtype;
    TrainingState state = fresh(train);
    for (int step = 0; step < 10; ++step) grow_loss_scale(state, train);
    EXPECT_EQ(state.loss_scale, 1) << dtype;
    EXPECT_FALSE(shrink_loss_scale(state)) << dtype;
  }
}

TEST(LossScale, B61_GoesOnAfterAResumeAndBeginsAnewInAnotherType) {
  const Config::Train train = fp16();
  TrainingState state = fresh(train);
  state.loss_scale = 128;
  state.loss_scale_steps = 2;
  const TrainingState stored = parse_training_json(to_json(state));
  TrainingState same = stored;
  adapt_loss_scale(same, "fp16", train);
  EXPECT_EQ(same, state);

  TrainingState from_fp32 = stored;
  adapt_loss_scale(from_fp32, "fp32", train);
  EXPECT_EQ(from_fp32.loss_scale, 1024);
  EXPECT_EQ(from_fp32.loss_scale_steps, 0);

  Config::Train bf16 = train;
  bf16.dtype = "bf16";
  TrainingState to_bf16 = stored;
  adapt_loss_scale(to_bf16, "fp16", bf16);
  EXPECT_EQ(to_bf16.loss_scale, 1);
}

}  // namespace
}  // namespace shardwright::trainer
