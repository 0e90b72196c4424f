#include "ckpt/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class RetentionTest : public ::testing::Test {
 protected:
  void save(std::uint64_t step) {
    SampleSave sample;
    sample.step = step;
    sample.writers = 1;
    save_sample(env_, checkpoints_, sample);
  }
  RetentionJob job(int keep) {
    RetentionJob job;
    job.checkpoints_dir = checkpoints_;
    job.keep = keep;
    job.attempt = "0-1";
    return job;
  }
  std::vector<std::string> names() { return env_.list(checkpoints_); }

  TempDir dir_;
  std::string checkpoints_ = dir_ / "checkpoints";
  Env& env_ = posix_env();
};

TEST_F(RetentionTest, B108_OrderIsByStep) {
  for (std::uint64_t step : {8, 9, 10, 11, 100}) {
    save(step);
    retire(env_, job(3));
  }
  EXPECT_THAT(names(), ElementsAre("step-0000000010", "step-0000000011", "step-0000000100"));
  for (std::uint64_t step : {99999, 100000}) save(step);
  retire(env_, job(1));
  EXPECT_THAT(names(), ElementsAre("step-0000100000"));
}

TEST_F(RetentionTest, WhatALinkLeadsToStays) {
  for (std::uint64_t step : {1, 2, 3}) save(step);
  fs::rename(checkpoints_ + "/step-0000000001", dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", checkpoints_ + "/step-0000000001");
  EXPECT_EQ(retire(env_, job(1)).size(), 2u);
  EXPECT_THAT(names(), ElementsAre("step-0000000003"));
  EXPECT_THAT(env_.list(dir_ / "elsewhere"), ElementsAre("COMMIT", "manifest.h5", "rank-00000.h5"));
}

TEST_F(RetentionTest, B110_KeepBelowOneIsRefused) {
  save(1);
  for (int keep : {0, -1}) EXPECT_EQ(error_of([&] { retire(env_, job(keep)); }).code(), ErrorCode::usage);
  EXPECT_TRUE(retire(env_, job(1)).empty());
  EXPECT_THAT(names(), ElementsAre("step-0000000001"));
}

TEST_F(RetentionTest, DamagedOnesDoNotCountAndStay) {
  for (std::uint64_t step : {1, 2, 3}) save(step);
  env_.unlink(checkpoints_ + "/step-0000000003/rank-00000.h5");
  EXPECT_THAT(retire(env_, job(1)), ElementsAre(checkpoints_ + "/step-0000000001"));
  EXPECT_THAT(names(), ElementsAre("step-0000000002", "step-0000000003"));
}

TEST_F(RetentionTest, SparedOneStays) {
  for (std::uint64_t step : {1, 2, 3}) save(step);
  RetentionJob spare = job(1);
  spare.spare = checkpoints_ + "/../checkpoints/step-0000000001/";
  retire(env_, spare);
  EXPECT_THAT(names(), ElementsAre("step-0000000001", "step-0000000003"));
}

TEST_F(RetentionTest, SupersededOnesAreForPruneOnly) {
  for (std::uint64_t step : {1, 2}) save(step);
  fs::rename(checkpoints_ + "/step-0000000002", checkpoints_ + "/step-0000000002.superseded-1");
  EXPECT_TRUE(retire(env_, job(1)).empty());
  RetentionJob prune = job(1);
  prune.superseded = true;
  EXPECT_THAT(retire(env_, prune), ElementsAre(checkpoints_ + "/step-0000000002.superseded-1"));
  EXPECT_THAT(names(), ElementsAre("step-0000000001"));
}

TEST_F(RetentionTest, WhatIsNotWholeDoesNotCountAndOnlyWhatIsKeptIsRead) {
  for (std::uint64_t step : {1, 2, 3, 4}) save(step);
  std::vector<std::string> asked;
  RetentionJob deep = job(1);
  deep.is_whole = [&](const std::string& path) {
    asked.push_back(path);
    return !path.ends_with("4");
  };
  EXPECT_EQ(retire(env_, deep).size(), 2u);
  EXPECT_THAT(names(), ElementsAre("step-0000000003", "step-0000000004"));
  EXPECT_THAT(asked, ElementsAre(checkpoints_ + "/step-0000000004", checkpoints_ + "/step-0000000003"));
}

TEST_F(RetentionTest, ADryRunNamesTheSameAndRemovesNothing) {
  for (std::uint64_t step : {1, 2, 3}) save(step);
  RetentionJob dry = job(1);
  dry.dry_run = true;
  const std::vector<std::string> named = retire(env_, dry);
  EXPECT_THAT(names(), ElementsAre("step-0000000001", "step-0000000002", "step-0000000003"));
  EXPECT_EQ(retire(env_, job(1)), named);
  EXPECT_THAT(names(), ElementsAre("step-0000000003"));
}

TEST_F(RetentionTest, WhereNoneIsValidNothingGoes) {
  for (std::uint64_t step : {1, 2}) save(step);
  fs::rename(checkpoints_ + "/step-0000000002", checkpoints_ + "/step-0000000002.superseded-1");
  env_.unlink(checkpoints_ + "/step-0000000001/rank-00000.h5");
  RetentionJob prune = job(1);
  prune.superseded = true;
  EXPECT_TRUE(retire(env_, prune).empty());
  EXPECT_THAT(names(), ElementsAre("step-0000000001", "step-0000000002.superseded-1"));
}

TEST_F(RetentionTest, StaleGenerationRemovesNothing) {
  for (std::uint64_t step : {1, 2}) save(step);
  RetentionJob stale = job(1);
  stale.still_mine = [] { return false; };
  EXPECT_EQ(error_of([&] { retire(env_, stale); }).code(), ErrorCode::busy);
  EXPECT_THAT(names(), ElementsAre("step-0000000001", "step-0000000002"));
}

TEST_F(RetentionTest, NothingIsUnlinkedBeforeItsRenameIsDurable) {
  for (std::uint64_t step : {1, 2, 3}) save(step);
  TraceEnv trace;
  retire(trace, job(1));
  bool synced = false;
  for (const TraceOp& op : trace.ops()) {
    if (op.kind == TraceOp::rename) synced = false;
    if (op.kind == TraceOp::sync_dir && op.path == checkpoints_) synced = true;
    if (op.kind == TraceOp::unlink || op.kind == TraceOp::remove_dir) {
      EXPECT_TRUE(synced) << op.path;
    }
  }
}

}  // namespace
}  // namespace shardwright::ckpt
