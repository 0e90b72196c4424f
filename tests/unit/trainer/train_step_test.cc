#include "trainer/train_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "trainer/agreement.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {
namespace {

TEST(TrainStep, B145_B150_AStepHasTheSameSamplesInEveryLayout) {
  for (const int size : {1, 2, 3, 4, 6}) {
    for (const std::int64_t micro_batch : {1, 2}) {
      if (12 % (micro_batch * size) != 0) continue;
      std::vector<std::int64_t> places;
      for (int index = 0; index < size; ++index)
        for (std::int64_t micro = 0; micro < 12 / (micro_batch * size); ++micro)
          for (std::int64_t place : micro_batch_places(micro, micro_batch, index, size))
            places.push_back(place);
      std::sort(places.begin(), places.end());
      std::vector<std::int64_t> expected(12);
      for (std::size_t i = 0; i < 12; ++i) expected[i] = static_cast<std::int64_t>(i);
      EXPECT_EQ(places, expected) << size << " " << micro_batch;
    }
  }
}

TEST(TrainStep, SamplesFollowTheOrderFromThePosition) {
  const SampleOrder order(100, 8, 5);
  const std::vector<std::int64_t> samples = samples_of_step(order, 16, 8);
  ASSERT_EQ(samples.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(samples[i], order.sample(16 + static_cast<std::int64_t>(i)));
}

TEST(TrainingState, ComesBackEqual) {
  TrainingState state;
  state.step = 7;
  state.samples = 84;
  state.seed = 0xfedcba9876543210u;
  state.loss = 4.286783475372780123;
  state.global_batch = 12;
  state.data = "u16:4000:00";
  EXPECT_EQ(parse_training_json(to_json(state)), state);
  state.loss.reset();
  EXPECT_EQ(parse_training_json(to_json(state)), state);
}

TEST(TrainingState, RefusesWhatIsNone) {
  for (const char* text : {"", "[]", "{\"step\":1}", "{\"step\":\"x\",\"samples\":1,\"seed\":1}"}) {
    try {
      parse_training_json(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::damaged) << text;
    }
  }
  // Fields of other programs and later versions are no mistake.
  EXPECT_EQ(parse_training_json(R"({"step":3,"samples":9,"seed":1,"later":[1]})").step, 3);
}

TEST(Agreement, KeepsCodePathAndMessage) {
  const auto self = make_self_communicator();
  EXPECT_FALSE(failure_of_any(*self, [] {}));
  try {
    together(*self, [] {
      throw Error(ErrorCode::no_space, "a file: no space; more of it", "/a path/with 7 words");
    });
    FAIL();
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_space);
    EXPECT_STREQ(error.what(), "a file: no space; more of it");
    EXPECT_EQ(error.path(), "/a path/with 7 words");
  }
  const auto other = failure_of_any(*self, [] { throw std::bad_alloc(); });
  ASSERT_TRUE(other);
  EXPECT_EQ(other->code(), ErrorCode::io);
}

}  // namespace
}  // namespace shardwright::trainer
