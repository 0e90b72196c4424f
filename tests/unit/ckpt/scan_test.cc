#include "ckpt/scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/digest.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ScanTest : public ::testing::Test {
 protected:
  std::string save(std::uint64_t step) {
    SampleSave sample;
    sample.step = step;
    return save_sample(env_, checkpoints_, sample);
  }

  TempDir dir_;
  std::string checkpoints_ = dir_ / "run/checkpoints";
  Env& env_ = posix_env();
};

TEST_F(ScanTest, EachStatusWithItsReasonNewestFirst) {
  for (std::uint64_t step = 1; step <= 8; ++step) save(step);
  const auto at = [&](int step) {
    return checkpoints_ + "/" + step_dir_name(static_cast<std::uint64_t>(step));
  };
  fs::rename(at(8), at(8) + ".tmp-0-8");
  fs::rename(at(7), at(7) + ".superseded-1");
  replace_file(env_, at(6) + "/COMMIT", sign_record(R"({"format":"shardwright","version":9})"));
  fs::resize_file(at(5) + "/COMMIT", 30);
  env_.unlink(at(4) + "/rank-00001.h5");
  flip_bit(at(3) + "/manifest.h5", 50);
  fs::resize_file(at(2) + "/rank-00002.h5", fs::file_size(at(2) + "/rank-00002.h5") - 1);
  env_.create_dirs(at(1) + ".trash-0-1");
  env_.create_dirs(checkpoints_ + "/other");
  replace_file(env_, checkpoints_ + "/LATEST", "step-0000000099\n");

  const auto entries = scan(env_, checkpoints_);
  ASSERT_EQ(entries.size(), 8u);
  const struct {
    Status status;
    const char* reason;
  } expected[] = {{Status::incomplete, "still being written"}, {Status::superseded, "superseded"},
                  {Status::future_version, "version 9"},       {Status::incomplete, "COMMIT: torn"},
                  {Status::damaged, "rank-00001.h5: missing"}, {Status::damaged, "manifest.h5"},
                  {Status::damaged, "rank-00002.h5"},          {Status::valid, ""}};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].step, 8 - i);
    EXPECT_EQ(entries[i].status, expected[i].status) << name(entries[i].status) << " " << entries[i].reason;
    EXPECT_THAT(entries[i].reason, HasSubstr(expected[i].reason));
  }
  EXPECT_TRUE(entries[7].reason.empty());
  EXPECT_GT(entries[7].stored_bytes, 1000u);
  EXPECT_GT(entries[7].time, 1e9);
  EXPECT_EQ(entries[7].layout_json, R"({"string":"t1p1d1z0"})");

  std::vector<PassedOver> passed_over;
  const auto newest = newest_valid(env_, checkpoints_, &passed_over);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->commit.step, 1u);
  ASSERT_EQ(passed_over.size(), 5u);
  EXPECT_THAT(passed_over[0].path, HasSubstr("step-0000000006"));
}

TEST_F(ScanTest, DeepFindsWhatTheStructureDoesNotShow) {
  const std::string path = save(2);
  for (const std::uint64_t step : {1, 3}) save(step);
  const FileRecord file = Checkpoint::open(env_, path).manifest().files[1];
  OpenFiles files(env_);
  const ShardReader shard(files, path, file);
  for (const std::size_t chunk : {0, 1}) flip_bit(path + "/" + file.name, shard.table()[chunk].address);
  for (const ScanEntry& entry : scan(env_, checkpoints_)) EXPECT_EQ(entry.status, Status::valid);
  for (const int threads : {1, 3, 7}) {
    std::uint64_t last = 0, all = 0;
    const auto deep = deep_scan(env_, checkpoints_, threads, [&](std::uint64_t done, std::uint64_t of) {
      EXPECT_LE(last, done);
      EXPECT_LE(done, of);
      last = done;
      all = of;
    });
    ASSERT_EQ(deep.size(), 3u);
    EXPECT_EQ(last, all) << "threads " << threads;
    EXPECT_EQ(all, deep[0].stored_bytes + deep[1].stored_bytes + deep[2].stored_bytes);
    EXPECT_EQ(deep[0].status, Status::valid) << deep[0].reason;
    EXPECT_EQ(deep[1].status, Status::damaged);
    EXPECT_EQ(deep[2].status, Status::valid) << deep[2].reason;
    EXPECT_THAT(deep[1].reason, HasSubstr("rank-00001.h5"));
    EXPECT_THAT(deep[1].reason, HasSubstr("and 1 more"));
  }
}

TEST_F(ScanTest, StepIsCheckedAgainstTheDirectory) {
  const std::string path = save(1);
  fs::rename(path, checkpoints_ + "/step-0000000009");
  EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr), std::nullopt);
  EXPECT_THAT(scan(env_, checkpoints_)[0].reason, HasSubstr("says step 1"));
}

TEST_F(ScanTest, NoDirectoryHoldsNothing) {
  EXPECT_EQ(newest_valid(env_, dir_ / "nowhere", nullptr), std::nullopt);
  EXPECT_EQ(error_of([&] { scan(env_, dir_ / "nowhere"); }).code(), ErrorCode::missing);
}

TEST_F(ScanTest, B142_NamedCheckpointResolvesOrIsAnError) {
  const auto resolve = [&](const std::string& path) { return resolve_checkpoint(env_, path); };
  const auto code = [&](const std::string& path) { return error_of([&] { resolve(path); }).code(); };
  EXPECT_EQ(code(dir_ / "run"), ErrorCode::missing);
  env_.create_dirs(checkpoints_);
  EXPECT_EQ(code(dir_ / "run"), ErrorCode::missing);
  const std::string first = save(1), second = save(2);
  for (const std::string& path : {dir_ / "run", dir_ / "run/", checkpoints_, second, second + "/"})
    EXPECT_EQ(resolve(path), second) << path;
  EXPECT_EQ(resolve(first), first);
  fs::rename(second, checkpoints_ + "/step-0000000002.superseded-1");
  EXPECT_EQ(resolve(dir_ / "run"), first);
  EXPECT_EQ(resolve(checkpoints_ + "/step-0000000002.superseded-1"),
            checkpoints_ + "/step-0000000002.superseded-1");
  env_.unlink(first + "/COMMIT");
  EXPECT_EQ(code(dir_ / "run"), ErrorCode::damaged);
  EXPECT_EQ(code(first + "/manifest.h5"), ErrorCode::missing);
  EXPECT_EQ(code(dir_ / "typo"), ErrorCode::missing);
}

TEST_F(ScanTest, B90_StepInWorkIsBusy) {
  SampleSave save;
  write_sample_rank(env_, checkpoints_, save, 0);
  const auto code = [&](const std::string& path) {
    return error_of([&] { resolve_checkpoint(env_, path); }).code();
  };
  EXPECT_EQ(code(save.attempt_dir(checkpoints_)), ErrorCode::busy);
  EXPECT_EQ(code(checkpoints_ + "/step-0000000005"), ErrorCode::busy);
  EXPECT_EQ(code(checkpoints_), ErrorCode::busy);
  EXPECT_EQ(error_of([&] { Checkpoint::open(env_, save.attempt_dir(checkpoints_)); }).code(),
            ErrorCode::busy);
}

TEST_F(ScanTest, B114_TreeCanBeMovedAndReachedThroughALink) {
  save(3);
  fs::rename(dir_ / "run", dir_ / "moved");
  fs::create_directory_symlink(dir_ / "moved", dir_ / "link");
  for (const char* name : {"moved", "link"}) {
    const std::string path = resolve_checkpoint(env_, dir_ / name);
    expect_sample(Checkpoint::open(env_, path), 3);
  }
}

}  // namespace
}  // namespace shardwright::ckpt
