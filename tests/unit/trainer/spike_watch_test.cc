#include "trainer/spike_watch.h"

#include <gtest/gtest.h>

namespace shardwright::trainer {
namespace {

TEST(SpikeWatch, TellsAValueFarAboveTheMedian) {
  SpikeWatch watch(1.5);
  for (int step = 0; step < 20; ++step) EXPECT_FALSE(watch.add(4.0 - 0.05 * step));
  const auto usual = watch.add(6);
  ASSERT_TRUE(usual);
  EXPECT_NEAR(*usual, 3.5, 0.06);
  EXPECT_FALSE(watch.add(3.0));  // one leap does not move the median
}

TEST(SpikeWatch, TheFirstValuesAreNotJudged) {
  SpikeWatch watch(1.5);
  for (std::size_t step = 0; step < SpikeWatch::kWarmUp; ++step)
    EXPECT_FALSE(watch.add(step % 2 == 0 ? 1 : 100));
}

TEST(SpikeWatch, ANewLevelBecomesUsual) {
  SpikeWatch watch(2);
  for (int step = 0; step < 10; ++step) watch.add(1);
  EXPECT_TRUE(watch.add(5));
  for (std::size_t step = 0; step < SpikeWatch::kWindow; ++step) watch.add(5);
  EXPECT_FALSE(watch.add(5));
}

TEST(SpikeWatch, ZeroWatchesNothing) {
  SpikeWatch watch(0);
  for (int step = 0; step < 20; ++step) watch.add(1);
  EXPECT_FALSE(watch.add(1e30));
}

}  // namespace
}  // namespace shardwright::trainer
