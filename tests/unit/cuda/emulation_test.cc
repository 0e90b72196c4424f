// The emulation itself: threads, barriers and shuffles behave as on a GPU, and misuse is seen.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/emulation/cuda_emulation.h"

namespace {

TEST(Emulation, EachThreadOfEachBlockRunsOnce) {
  std::vector<int> runs(3 * 64);
  emulation::run(3, 64, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; });
  EXPECT_EQ(runs, std::vector<int>(3 * 64, 1));
}

TEST(Emulation, WhatIsWrittenBeforeABarrierIsReadAfterIt) {
  std::vector<unsigned> written(96), read(96);
  emulation::run(1, 96, [&] {
    for (unsigned round = 0; round < 3; ++round) {
      written[threadIdx.x] = threadIdx.x + round;
      __syncthreads();
      read[threadIdx.x] = written[95 - threadIdx.x];
      __syncthreads();
      EXPECT_EQ(read[threadIdx.x], 95 - threadIdx.x + round);
    }
  });
}

TEST(Emulation, ShufflesStayWithinTheirWarp) {
  std::vector<double> got(64);
  emulation::run(1, 64, [&] {
    const double once = __shfl_down_sync(0xffffffffu, threadIdx.x, 5);
    got[threadIdx.x] = __shfl_down_sync(0xffffffffu, once, 1);
  });
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned lane = t % 32, neighbour = lane < 31 ? lane + 1 : lane;
    EXPECT_EQ(got[t], t - lane + (neighbour + 5 < 32 ? neighbour + 5 : neighbour)) << t;
  }
}

TEST(Emulation, ABarrierThatSomeThreadsNeverReachIsAnError) {
  EXPECT_THROW(emulation::run(1, 64,
                              [] {
                                if (threadIdx.x != 7) __syncthreads();
                              }),
               std::logic_error);
  EXPECT_THROW(emulation::run(1, 64,
                              [] {
                                if (threadIdx.x != 40) __shfl_down_sync(0xffffffffu, 1, 1);
                              }),
               std::logic_error);
  EXPECT_THROW(emulation::run(1, 33, [] {}), std::logic_error);
}

}  // namespace
