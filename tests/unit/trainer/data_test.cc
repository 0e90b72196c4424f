#include "trainer/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <set>

#include "ckpt/error.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TokenFiles : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return directory_ / name;
  }
  std::string write_u16(const std::string& name, const std::vector<std::uint16_t>& tokens) {
    return write(name, std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2));
  }

  TempDir directory_;
};

std::vector<std::int32_t> inputs_of(const TokenData& data, std::int64_t index, std::int64_t positions) {
  std::vector<std::int32_t> inputs(positions), targets(positions);
  data.read(index, positions, inputs.data(), targets.data());
  return inputs;
}

ErrorCode code_of(const std::vector<std::string>& files, const std::string& format, std::int64_t vocab,
                  std::string* message = nullptr) {
  try {
    TokenData::open(files, format, vocab);
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::given_up;
}

TEST_F(TokenFiles, TextIsBytesAndTargetsAreTheNextOnes) {
  const TokenData data = TokenData::open({write("a.txt", "abcdefgh\xff")}, "auto", 256);
  EXPECT_EQ(data.tokens(), 9);
  EXPECT_EQ(data.samples(3), 2);
  EXPECT_EQ(data.samples(4), 2);
  EXPECT_EQ(data.samples(9), 0);
  std::vector<std::int32_t> inputs(4), targets(4);
  data.read(1, 4, inputs.data(), targets.data());
  EXPECT_THAT(inputs, ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(targets, ElementsAre('f', 'g', 'h', 255));
}

TEST_F(TokenFiles, SamplesRunAcrossFiles) {
  const TokenData data = TokenData::open({write_u16("a.bin", {1, 2}), write_u16("b.bin", {}),
                                          write_u16("c.bin", {3, 4, 96}), write_u16("d.bin", {5})},
                                         "auto", 97);
  EXPECT_EQ(data.tokens(), 6);
  EXPECT_THAT(inputs_of(data, 0, 5), ElementsAre(1, 2, 3, 4, 96));
  std::vector<std::int32_t> inputs(1), targets(1);
  data.read(4, 1, inputs.data(), targets.data());
  EXPECT_THAT(inputs, ElementsAre(96));
  EXPECT_THAT(targets, ElementsAre(5));
}

TEST_F(TokenFiles, DigestIsOfContentNotOfPaths) {
  const std::string whole = TokenData::open({write("a.txt", "hello world")}, "text", 256).digest();
  EXPECT_EQ(TokenData::open({write("b", "hello "), write("c", "world")}, "text", 256).digest(), whole);
  EXPECT_NE(TokenData::open({write("d", "hello worle")}, "text", 256).digest(), whole);
  EXPECT_THAT(whole, HasSubstr("text:11:"));
}

TEST_F(TokenFiles, RefusalsNameFileAndPlace) {
  std::string message;
  std::vector<std::uint16_t> tokens(5000, 3);
  tokens[4321] = 97;
  const std::string bad = write_u16("bad.bin", tokens);
  EXPECT_EQ(code_of({bad}, "u16", 97, &message), ErrorCode::usage);
  EXPECT_THAT(message, HasSubstr("bad.bin: token 97 at position 4321"));
  EXPECT_EQ(code_of({write("odd.bin", "abc")}, "auto", 97, &message), ErrorCode::usage);
  EXPECT_THAT(message, HasSubstr("3 bytes"));
  EXPECT_EQ(code_of({directory_ / "absent.txt"}, "auto", 256, &message), ErrorCode::missing);
  EXPECT_THAT(message, HasSubstr("absent.txt"));
  EXPECT_EQ(code_of({directory_.path()}, "text", 256, &message), ErrorCode::usage);
  EXPECT_THAT(message, HasSubstr("not a regular file"));
  EXPECT_EQ(code_of({write("t.txt", "a"), bad}, "auto", 256), ErrorCode::usage);
  EXPECT_EQ(code_of({}, "auto", 256), ErrorCode::usage);
  EXPECT_EQ(code_of({write("high.txt", "a\xc3\xa4")}, "text", 97, &message), ErrorCode::usage);
  EXPECT_THAT(message, HasSubstr("256"));
}

std::vector<std::int64_t> run_of(const SampleOrder& order, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = first; i < first + count; ++i) samples.push_back(order.sample(i));
  return samples;
}

TEST(SampleOrder, EachEpochIsAPermutation) {
  for (const std::int64_t samples : {1, 2, 3, 4, 5, 7, 16, 17, 64, 97, 1000}) {
    const SampleOrder order(samples, 1, 1234);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> seen = run_of(order, epoch * samples, samples);
      std::sort(seen.begin(), seen.end());
      std::vector<std::int64_t> all(samples);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(seen, all) << samples << " samples, epoch " << epoch;
    }
  }
}

TEST(SampleOrder, EpochsAndSeedsDiffer) {
  const SampleOrder order(1000, 8, 7);
  EXPECT_NE(run_of(order, 0, 1000), run_of(order, 1000, 1000));
  EXPECT_NE(run_of(order, 0, 1000), run_of(SampleOrder(1000, 8, 8), 0, 1000));
  EXPECT_EQ(run_of(order, 0, 1000), run_of(SampleOrder(1000, 8, 7), 0, 1000));
}

TEST(SampleOrder, LooksShuffled) {
  // Of a random permutation of n values about one stays in place, and neighbours are about n/3 apart.
  const std::int64_t n = 10007;
  const SampleOrder order(n, 1, 42);
  std::int64_t fixed = 0;
  double distance = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    fixed += order.sample(i) == i;
    distance += static_cast<double>(std::abs(order.sample(i) - order.sample(i + 1 == n ? 0 : i + 1)));
  }
  EXPECT_LT(fixed, 10);
  EXPECT_NEAR(distance / static_cast<double>(n) / static_cast<double>(n), 1.0 / 3, 0.02);
}

TEST(SampleOrder, PinnedValues) {
  // Resuming a run with a newer program must go on in the same order.
  EXPECT_THAT(run_of(SampleOrder(64, 8, 1), 0, 8), ElementsAre(63, 47, 56, 38, 36, 7, 6, 20));
}

TEST(SampleOrder, B71_EndOfAnEpochIsTheStartOfTheNext) {
  for (const std::int64_t samples : {64, 66}) {
    const SampleOrder order(samples, 8, 5);
    const std::vector<std::int64_t> whole = run_of(order, 0, 128);
    const std::vector<std::int64_t> resumed = run_of(order, 64, 64);
    EXPECT_TRUE(std::equal(resumed.begin(), resumed.end(), whole.begin() + 64));
    EXPECT_EQ(std::set<std::int64_t>(resumed.begin(), resumed.end()).size(), 64U);
  }
}

TEST(SampleOrder, B76_OnlyWholeGlobalBatchesAreDealt) {
  // 66 samples in batches of 12: 60 positions an epoch, all different, and every sample is used in some
  // epoch.
  const SampleOrder order(66, 12, 3);
  std::set<std::int64_t> ever;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const std::vector<std::int64_t> dealt = run_of(order, epoch * 60, 60);
    EXPECT_EQ(std::set<std::int64_t>(dealt.begin(), dealt.end()).size(), 60U);
    ever.insert(dealt.begin(), dealt.end());
  }
  EXPECT_EQ(ever.size(), 66U);
}

TEST(SampleOrder, B77_SeekingIsConstantTime) {
  const SampleOrder order(1'000'003, 8, 3);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 1000; ++i) sum += order.sample(1'000'000'000'000'000 + i);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_GT(sum, 0);
}

TEST(SampleOrder, FewerSamplesThanABatchAreRefused) {
  try {
    SampleOrder(7, 8, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("7 samples"));
  }
}

}  // namespace
}  // namespace shardwright::trainer
