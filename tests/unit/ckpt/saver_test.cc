#include "ckpt/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "ckpt/fault.h"
#include "ckpt/run_dir.h"
#include "ckpt/scan.h"
#include "ckpt/verify.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

class SaverTest : public ::testing::Test {
 protected:
  void SetUp() override { generation_ = begin_generation(env_, dir_ / "run", checkpoints_).generation; }

  SaverOptions options(int rank, int writers) {
    SaverOptions o;
    o.checkpoints_dir = checkpoints_;
    o.run_dir = dir_ / "run";
    o.run = generation_.run;
    o.generation = generation_.number;
    o.rank = rank;
    o.writers = writers;
    o.commit_deadline_s = 20;
    o.shard.threads = 2;
    return o;
  }

  std::vector<std::unique_ptr<Saver>> savers(int writers, bool async = true, int keep = 0) {
    std::vector<std::unique_ptr<Saver>> all;
    for (int rank = 0; rank < writers; ++rank) {
      SaverOptions o = options(rank, writers);
      o.async = async;
      o.keep = keep;
      all.push_back(std::make_unique<Saver>(env_, o));
    }
    return all;
  }

  static SaveRequest request(std::uint64_t step, std::uint64_t number, int rank, int writers) {
    return {step, number, sample_items(rank, writers, step), sample_description(step)};
  }

  /// All ranks save, the committing one last, so that it also works without async.
  static std::vector<SaveOutcome> save(std::vector<std::unique_ptr<Saver>>& all, std::uint64_t step,
                                       std::uint64_t number) {
    const int writers = static_cast<int>(all.size());
    for (int rank = writers; rank-- > 0;)
      all[static_cast<std::size_t>(rank)]->start(request(step, number, rank, writers));
    std::vector<SaveOutcome> outcomes;
    for (auto& saver : all) {
      saver->wait(30);
      for (SaveOutcome& o : saver->take_outcomes()) outcomes.push_back(std::move(o));
    }
    return outcomes;
  }

  TempDir dir_;
  std::string checkpoints_ = dir_ / "run/checkpoints";
  Env& env_ = posix_env();
  Generation generation_;
};

TEST_F(SaverTest, B86_AsyncAndSyncCommitAndPointToTheLast) {
  std::uint64_t number = 0;
  for (const bool async : {true, false})
    for (const int writers : {1, 3, 5}) {
      auto all = savers(writers, async);
      const std::uint64_t step = ++number * 10;
      const auto outcomes = save(all, step, number);
      ASSERT_EQ(outcomes.size(), static_cast<std::size_t>(writers));
      for (const SaveOutcome& o : outcomes) {
        EXPECT_EQ(o.result, SaveResult::committed) << o.reason;
        EXPECT_EQ(o.step, step);
        EXPECT_EQ(o.attempt, "0-" + std::to_string(number));
        EXPECT_GT(o.raw_bytes, 0u);
        EXPECT_GT(o.stored_bytes, 0u);
        EXPECT_GE(o.peak_host_bytes, o.raw_bytes) << "the snapshot itself is host memory";
        EXPECT_GE(o.total_s * 1e3, o.stall_ms);
        EXPECT_GT(o.snapshot_ms, 0);
        EXPECT_GE(o.queue_s, 0);
        EXPECT_GE(o.total_s, o.queue_s + o.chunk_wait_s + o.write_s + o.fsync_s + o.commit_s);
        EXPECT_GE(o.commit_s, o.parts_wait_s);
        EXPECT_EQ(o.parts_wait_s > 0, o.commit_s > 0) << "rank 0 alone waits for parts";
        EXPECT_EQ(o.copied_bytes, o.raw_bytes) << "without `lazy` all is copied";
        EXPECT_EQ(o.verify_s, 0);
      }
      EXPECT_TRUE(verify(env_, outcomes[0].path, 1).ok());
      expect_sample(Checkpoint::open(env_, outcomes[0].path), step);
      EXPECT_EQ(read_file(env_, checkpoints_ + "/LATEST"), step_dir_name(step) + "\n");
    }
}

TEST_F(SaverTest, B81_ValuesAreThoseAtTheCall) {
  for (const bool lazy : {false, true}) {
    SaverOptions o = options(0, 1);
    o.lazy = lazy;
    Saver saver(env_, o);
    for (std::uint64_t step = 10; step < 30; ++step) {
      SaveRequest r = request(step, step + (lazy ? 100 : 0), 0, 1);
      const std::vector<SaveItem> items = r.items;
      saver.start(std::move(r));
      for (const SaveItem& item : items) {  // training goes on
        saver.before_write(item.tensor, item.kind, Box::whole(item.global_shape));
        auto& values =
            std::const_pointer_cast<OwnedSource>(std::static_pointer_cast<const OwnedSource>(item.source))
                ->values();
        std::fill(values.begin(), values.end(), std::byte{0xAB});
      }
      saver.wait(30);
      const std::vector<SaveOutcome> outcomes = saver.take_outcomes();
      ASSERT_EQ(outcomes.back().result, SaveResult::committed) << outcomes.back().reason;
      expect_sample(Checkpoint::open(env_, checkpoints_ + "/" + step_dir_name(step)), step);
    }
  }
}

TEST_F(SaverTest, OutcomeSaysWhatTheTrainingThreadCopiedAndWaitedFor) {
  SaverOptions o = options(0, 1);
  o.lazy = true;
  o.shard.verify_writes = true;
  Saver saver(env_, o);
  // Nothing changes while it is written: nothing is copied.
  saver.start(request(1, 1, 0, 1));
  saver.wait(30);
  SaveOutcome still = saver.take_outcomes().at(0);
  EXPECT_EQ(still.copied_bytes, 0u);
  EXPECT_EQ(still.before_write_ms, 0);
  EXPECT_DOUBLE_EQ(still.stall_ms, still.snapshot_ms);
  EXPECT_GT(still.verify_s, 0);
  EXPECT_GT(still.encode_s, still.verify_s);

  // All changes before the first chunk is read: all is copied.
  set_fault("shard.open=delay(200)");
  SaveRequest r = request(2, 2, 0, 1);
  const std::vector<SaveItem> items = r.items;
  saver.start(std::move(r));
  for (const SaveItem& item : items)
    saver.before_write(item.tensor, item.kind, Box::whole(item.global_shape));
  saver.wait(30);
  set_fault("");
  const SaveOutcome all = saver.take_outcomes().at(0);
  EXPECT_EQ(all.result, SaveResult::committed) << all.reason;
  EXPECT_EQ(all.copied_bytes, all.raw_bytes);
  EXPECT_GT(all.before_write_ms, 0);
  EXPECT_DOUBLE_EQ(all.stall_ms, all.snapshot_ms + all.before_write_ms);
}

TEST_F(SaverTest, B110_KeepOneLeavesExactlyOne) {
  for (const bool async : {true, false}) {
    auto all = savers(2, async, 1);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      const std::uint64_t n = step + (async ? 0 : 10);
      const auto outcomes = save(all, n, n);
      EXPECT_EQ(outcomes[0].result, SaveResult::committed) << outcomes[0].reason;
      EXPECT_THAT(env_.list(checkpoints_), ElementsAre("LATEST", step_dir_name(n)));
      EXPECT_EQ(outcomes[0].retired.size(), n > 1 ? 1u : 0u);
    }
  }
}

TEST_F(SaverTest, B111_FailedSecondSaveKeepsTheFirst) {
  TraceEnv failing;
  SaverOptions o = options(0, 1);
  o.keep = 1;
  Saver saver(failing, o);
  saver.start(request(1, 1, 0, 1));
  saver.wait(30);
  const std::size_t operations = failing.ops().size();
  ASSERT_EQ(saver.take_outcomes()[0].result, SaveResult::committed);
  for (std::uint64_t n = 2; n < 8; ++n) {
    failing.fail_at(failing.ops().size() + operations * (n - 2) / 8, ENOSPC, true);
    saver.start(request(n, n, 0, 1));
    saver.wait(30);
    failing.stop_failing();
    const auto outcomes = saver.take_outcomes();
    EXPECT_EQ(outcomes[0].result, SaveResult::failed);
    EXPECT_FALSE(outcomes[0].reason.empty());
    EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr)->commit.step, 1u);
    saver.discard(outcomes[0].attempt, n);
    EXPECT_THAT(env_.list(checkpoints_), ElementsAre("LATEST", "step-0000000001"));
  }
  saver.start(request(9, 9, 0, 1));  // there is room again
  saver.wait(30);
  EXPECT_EQ(saver.take_outcomes()[0].result, SaveResult::committed);
}

TEST_F(SaverTest, B91_FailingRankIsNamedAtOnce) {
  auto all = savers(3);
  env_.create_dirs(checkpoints_ + "/step-0000000007.tmp-0-1/rank-00002.h5");  // its file name is a directory
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = save(all, 7, 1);
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start).count(), 15);
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(outcomes[0].result, SaveResult::failed);
  EXPECT_THAT(outcomes[0].reason, HasSubstr("rank 2"));
  EXPECT_THAT(outcomes[0].reason, HasSubstr("rank-00002.h5"));
  EXPECT_EQ(outcomes[1].result, SaveResult::committed) << "its part was published";
  EXPECT_EQ(outcomes[2].result, SaveResult::failed);
  EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr), std::nullopt);
  for (std::size_t rank : {1u, 2u}) all[rank]->discard("0-1", 7);
  all[0]->discard("0-1", 7);
  EXPECT_FALSE(env_.exists(checkpoints_ + "/step-0000000007.tmp-0-1"));
}

TEST_F(SaverTest, DeadRankMeansNoCommitAndALatePartIsIgnored) {
  SaverOptions o = options(0, 2);
  o.commit_deadline_s = 0.1;
  Saver zero(env_, o), one(env_, options(1, 2));
  zero.start(request(7, 1, 0, 2));
  zero.wait(10);
  EXPECT_THAT(zero.take_outcomes()[0].reason, HasSubstr("rank 1"));
  zero.discard("0-1", 7);
  one.start(request(7, 1, 1, 2));
  one.wait(10);
  EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr), std::nullopt);
  const Started next = begin_generation(env_, dir_ / "run", checkpoints_);
  EXPECT_EQ(next.removed.size(), 1u);
  EXPECT_TRUE(env_.list(checkpoints_).empty());
}

TEST_F(SaverTest, StaleGenerationCommitsAndRemovesNothing) {
  Saver zero(env_, options(0, 2)), one(env_, options(1, 2));
  zero.start(request(7, 1, 0, 2));
  begin_generation(env_, dir_ / "run", checkpoints_);
  SampleSave newer;
  newer.run = generation_.run;
  newer.generation = 1;
  newer.step = 7;
  const std::string path = save_sample(env_, checkpoints_, newer);
  one.start(request(7, 1, 1, 2));
  zero.wait(30);
  one.wait(30);
  EXPECT_EQ(zero.take_outcomes()[0].result, SaveResult::failed);
  EXPECT_EQ(read_commit(env_, path).generation, 1u);
  env_.create_dirs(checkpoints_ + "/step-0000000007.tmp-0-1");
  EXPECT_EQ(error_of([&] { zero.discard("0-1", 7); }).code(), ErrorCode::busy);
}

TEST_F(SaverTest, B84_WaitHasADeadlineAndTheDestructorEnds) {
  const auto start = std::chrono::steady_clock::now();
  {
    SaverOptions o = options(0, 2);
    o.commit_deadline_s = 600;
    Saver saver(env_, o);
    saver.start(request(7, 1, 0, 2));  // rank 1 never comes
    EXPECT_TRUE(saver.busy());
    EXPECT_EQ(error_of([&] { saver.wait(0.05); }).code(), ErrorCode::deadline);
    EXPECT_EQ(error_of([&] { saver.start(request(8, 2, 0, 2)); }).code(), ErrorCode::busy);
  }
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - start).count(), 20);
}

TEST_F(SaverTest, B89_OutcomesCarryWhatWasCapturedAtTheCall) {
  Saver saver(env_, options(0, 1));
  saver.start(request(10, 1, 0, 1));
  saver.wait(30);
  saver.skip(11, 2, "the previous save is still running");
  saver.start(request(12, 3, 0, 1));
  saver.wait(30);
  const auto outcomes = saver.take_outcomes();
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(outcomes[0].step, 10u);
  EXPECT_EQ(outcomes[1].result, SaveResult::skipped);
  EXPECT_EQ(outcomes[1].attempt, "0-2");
  EXPECT_EQ(outcomes[2].path, checkpoints_ + "/step-0000000012");
  EXPECT_TRUE(saver.take_outcomes().empty());
}

TEST_F(SaverTest, B125_RankWithNothingToWrite) {
  Saver zero(env_, options(0, 2)), one(env_, options(1, 2));
  one.start({3, 1, {}, {}});
  zero.start({3, 1, sample_items(0, 1, 3), sample_description(3)});
  zero.wait(30);
  one.wait(30);
  EXPECT_EQ(zero.take_outcomes()[0].result, SaveResult::committed);
  const Checkpoint checkpoint = Checkpoint::open(env_, checkpoints_ + "/step-0000000003");
  EXPECT_EQ(checkpoint.manifest().files.size(), 1u);
  expect_sample(checkpoint, 3);
}

}  // namespace
}  // namespace shardwright::ckpt
