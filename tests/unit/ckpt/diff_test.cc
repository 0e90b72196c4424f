#include "ckpt/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>

#include "ckpt/value_text.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;

class DiffTest : public ::testing::Test {
 protected:
  /// A checkpoint of one writer with these items.
  Checkpoint save(const std::string& name, const std::vector<SaveItem>& items) {
    const std::string attempt = dir_ / (name + ".tmp-0-1");
    env_.create_dirs(attempt);
    publish_part(env_, attempt, write_shard(env_, attempt, "0-1", 0, 5, items, ShardOptions{}, nullptr));
    CommitJob job;
    job.attempt_dir = attempt;
    job.final_dir = dir_ / name;
    job.commit.attempt = "0-1";
    job.commit.step = 5;
    commit_attempt(env_, job);
    return Checkpoint::open(env_, job.final_dir);
  }

  template <class T>
  static SaveItem item(const std::string& tensor, DType type, Dims shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    const Box box = Box::whole(shape);
    return {
        tensor,
        "param",
        type,
        shape,
        box,
        {},
        std::make_shared<OwnedSource>(std::vector<std::byte>(bytes.begin(), bytes.end()), box, sizeof(T))};
  }

  template <class T>
  DiffReport compare(DType type, const Dims& shape, const std::vector<T>& a, const std::vector<T>& b,
                     const DiffOptions& options = {}) {
    const std::string n = std::to_string(++count_);
    return diff(save("a" + n, {item("t", type, shape, a)}), save("b" + n, {item("t", type, shape, b)}),
                options);
  }

  TempDir dir_;
  Env& env_ = posix_env();
  int count_ = 0;
};

TEST_F(DiffTest, EqualAcrossWriterCountsFromManifestsAlone) {
  SampleSave three, seven;
  seven.writers = 7;
  const std::string a = save_sample(env_, dir_ / "a", three), b = save_sample(env_, dir_ / "b", seven);
  const Checkpoint x = Checkpoint::open(env_, a), y = Checkpoint::open(env_, b);
  for (const std::string& path : {a, b})
    for (const std::string& name : env_.list(path))
      if (name.starts_with("rank-")) env_.unlink(path + "/" + name);
  const DiffReport report = diff(x, y, {});
  EXPECT_TRUE(report.equal());
  EXPECT_FALSE(report.content_read);
  EXPECT_EQ(report.compared, sample_states().size());
}

TEST_F(DiffTest, OneChangedElementIsNamedWithItsPlace) {
  std::vector<float> a(97 * 8, 1.5f), b = a;
  b[50 * 8 + 3] = 1.75f;
  const DiffReport report = compare(DType::f32, {97, 8}, a, b);
  ASSERT_EQ(report.differences.size(), 1u);
  const Difference& d = report.differences[0];
  EXPECT_TRUE(report.content_read);
  EXPECT_EQ(d.what, "value");
  EXPECT_EQ(d.index, (Dims{50, 3}));
  EXPECT_EQ(d.a, "1.5");
  EXPECT_EQ(d.b, "1.75");
  EXPECT_EQ(d.count, 1u);
  EXPECT_EQ(d.max_abs, 0.25);
  EXPECT_EQ(d.max_rel, 0.25 / 1.75);
}

TEST_F(DiffTest, EveryTypeIsShownAsItsValue) {
  const auto first = [](const DiffReport& r) { return r.differences.at(0).a + " " + r.differences.at(0).b; };
  EXPECT_EQ(first(compare<std::uint16_t>(DType::bf16, {1}, {0x3f80}, {0xc000})), "1 -2");
  EXPECT_EQ(first(compare<std::uint16_t>(DType::f16, {1}, {0x3c00}, {0x0001})), "1 5.9604645e-08");
  EXPECT_EQ(first(compare<std::uint16_t>(DType::f16, {1}, {0xfc00}, {0x7e00})), "-Infinity NaN");
  EXPECT_EQ(first(compare<double>(DType::f64, {1}, {0.1}, {-0.0})), "0.1 -0");
  EXPECT_EQ(first(compare<std::int8_t>(DType::i8, {1}, {-5}, {5})), "-5 5");
  EXPECT_EQ(first(compare<std::uint8_t>(DType::boolean, {1}, {0}, {1})), "false true");
  EXPECT_EQ(first(compare<std::int64_t>(DType::i64, {1}, {INT64_MIN}, {INT64_MAX})),
            "-9223372036854775808 9223372036854775807");
  EXPECT_EQ(first(compare<std::uint64_t>(DType::u64, {1}, {UINT64_MAX}, {UINT64_MAX - 1})),
            "18446744073709551615 18446744073709551614");
  EXPECT_EQ(compare<std::uint64_t>(DType::u64, {1}, {UINT64_MAX}, {UINT64_MAX - 1}).differences[0].max_abs,
            1);
}

TEST_F(DiffTest, HalfPrecisionOfAllBitPatterns) {
  const auto f16 = [](std::uint16_t bits) {
    return value_of(DType::f16, reinterpret_cast<const std::byte*>(&bits));
  };
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const long double value = f16(static_cast<std::uint16_t>(bits));
    EXPECT_EQ(f16(static_cast<std::uint16_t>(bits | 0x8000)), -value);
    if (bits > 0) {
      EXPECT_GT(value, f16(static_cast<std::uint16_t>(bits - 1)));
    }
  }
  EXPECT_EQ(f16(0x7bff), 65504);
  EXPECT_TRUE(std::isinf(f16(0x7c00)));
  EXPECT_TRUE(std::isnan(f16(0x7c01)));
}

TEST_F(DiffTest, NanOfTheSameBitsIsEqual) {
  const float nan = std::nanf("1");
  EXPECT_TRUE(compare<float>(DType::f32, {2}, {nan, 1}, {nan, 1}).equal());
  const DiffReport report = compare<float>(DType::f32, {3}, {nan, 1, 2}, {nan, 1, 3});
  EXPECT_EQ(report.differences.at(0).index, (Dims{2}));
  EXPECT_EQ(report.differences.at(0).count, 1u);
  EXPECT_TRUE(std::isnan(compare<float>(DType::f32, {2}, {nan, 1}, {0, 9}).differences.at(0).max_abs));
}

TEST_F(DiffTest, TolerancesAreAsNumpyHasThem) {
  const std::vector<float> a = {1.0f, 100.0f, -0.0f}, b = {1.05f, 101.0f, 0.0f};
  DiffOptions options;
  EXPECT_EQ(compare(DType::f32, {3}, a, b, options).differences.at(0).count, 3u) << "bits by default";
  options.atol = 0.06;
  EXPECT_EQ(compare(DType::f32, {3}, a, b, options).differences.at(0).index, (Dims{1}));
  options.rtol = 0.01;
  EXPECT_TRUE(compare(DType::f32, {3}, a, b, options).equal());
}

TEST_F(DiffTest, MissingShapeAndType) {
  const std::vector<float> four(4);
  const Checkpoint a = save("x", {item("only_a", DType::f32, {4}, four), item("s", DType::f32, {4}, four),
                                  item("t", DType::f32, {4}, four)});
  const Checkpoint b =
      save("y", {item("only_b", DType::f32, {2, 2}, four), item("s", DType::f32, {2, 2}, four),
                 item("t", DType::i32, {4}, std::vector<std::int32_t>(4))});
  const DiffReport report = diff(a, b, {});
  std::vector<std::string> lines;
  for (const Difference& d : report.differences)
    lines.push_back(d.tensor + " " + d.what + " " + d.a + " " + d.b);
  EXPECT_THAT(lines, ::testing::ElementsAre("only_a missing [4] ", "only_b missing  [2, 2]",
                                            "s shape [4] [2, 2]", "t dtype f32 i32"));
  EXPECT_FALSE(report.content_read);
}

TEST_F(DiffTest, TensorsLargerThanABandAreReadInPieces) {
  const Dims shape{3, 5, 1 << 18};  // 15 MiB, one row of dimension 0 is 5 MiB
  std::vector<float> a(3u * 5u << 18, 0.5f), b = a;
  const std::size_t at = (2u * 5u + 4u) * (1u << 18) + 77;
  b[at] = 1;
  b[at + 5] = 4.5f;
  DiffOptions options;
  options.threads = 3;
  const DiffReport report = compare(DType::f32, shape, a, b, options);
  EXPECT_EQ(report.differences.at(0).index, (Dims{2, 4, 77}));
  EXPECT_EQ(report.differences.at(0).count, 2u);
  EXPECT_EQ(report.differences.at(0).max_abs, 4);
  const DiffReport flat = compare(DType::f32, {3u * 5u << 18}, a, b, options);
  EXPECT_EQ(flat.differences.at(0).index, (Dims{at}));
}

}  // namespace
}  // namespace shardwright::ckpt
