#include "ckpt/commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "ckpt/digest.h"
#include "ckpt/scan.h"
#include "ckpt/verify.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class CommitTest : public ::testing::Test {
 protected:
  std::string read(const std::string& path) { return read_file(env_, path); }
  void write(const std::string& path, const std::string& contents) { replace_file(env_, path, contents); }

  TempDir dir_;
  std::string checkpoints_ = dir_ / "checkpoints";
  Env& env_ = posix_env();
};

TEST_F(CommitTest, NamesOfSteps) {
  EXPECT_EQ(step_dir_name(120), "step-0000000120");
  EXPECT_EQ(parse_step_dir("step-0000000120"), 120u);
  for (const char* other :
       {"step-120", "step-00000001200", "step-000000012x", "step-0000000120.tmp-0-1",
        "step-0000000120.superseded-1", "Step-0000000120", "step-+000000120", "", "LATEST"})
    EXPECT_EQ(parse_step_dir(other), std::nullopt) << other;
}

TEST_F(CommitTest, RecordIsTheContractsTwoLines) {
  env_.create_dirs(checkpoints_);
  Commit commit;
  commit.run = "r";
  commit.generation = 3;
  commit.attempt = "3-12";
  commit.step = 120;
  commit.manifest.bytes = 77;
  commit.manifest.xxh3_128 = {1, 2};
  write_commit(env_, checkpoints_, commit, [] { return true; });
  const std::string contents = read(checkpoints_ + "/COMMIT");
  const std::string line =
      R"({"format":"shardwright","version":1,"run":"r","generation":3,"attempt":"3-12","step":120,)"
      R"("manifest":{"name":"manifest.h5","bytes":77,"xxh3_128":"00000000000000010000000000000002"}})";
  EXPECT_EQ(contents, sign_record(line));
  EXPECT_EQ(contents.size(), line.size() + 1 + 16 + 1);
  const Commit back = read_commit(env_, checkpoints_);
  EXPECT_EQ(back.attempt, "3-12");
  EXPECT_EQ(back.step, 120u);
  EXPECT_EQ(back.manifest.xxh3_128, commit.manifest.xxh3_128);
}

TEST_F(CommitTest, TornOrAbsentIsIncompleteAndChangedIsDamaged) {
  const std::string path = save_sample(env_, checkpoints_, {});
  const std::string whole = read(path + "/COMMIT");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(path + "/COMMIT", whole.substr(0, length));
    EXPECT_EQ(error_of([&] { read_commit(env_, path); }).code(), ErrorCode::incomplete) << length;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    write(path + "/COMMIT", changed);
    const ErrorCode code = error_of([&] { read_commit(env_, path); }).code();
    EXPECT_TRUE(code == ErrorCode::damaged || code == ErrorCode::incomplete) << i;
  }
  env_.unlink(path + "/COMMIT");
  EXPECT_EQ(error_of([&] { read_commit(env_, path); }).code(), ErrorCode::incomplete);
}

TEST_F(CommitTest, FutureVersionIsSaidWhateverElseItHolds) {
  env_.create_dirs(checkpoints_);
  write(checkpoints_ + "/COMMIT", sign_record(R"({"format":"shardwright","version":2,"all":"new"})"));
  const Error e = error_of([&] { read_commit(env_, checkpoints_); });
  EXPECT_EQ(e.code(), ErrorCode::future_version);
  EXPECT_THAT(e.what(), HasSubstr("version 2"));
}

TEST_F(CommitTest, SignedNonsenseIsDamage) {
  env_.create_dirs(checkpoints_);
  for (const char* json :
       {"{}", "[]", "7", "{", R"({"format":"other","version":1})",
        R"({"format":"shardwright","version":"1"})", R"({"format":"shardwright","version":0})",
        R"({"format":"shardwright","version":1,"run":"r","generation":0,"attempt":"0-1","step":1,)"
        R"("manifest":{"name":"../x","bytes":1,"xxh3_128":"00000000000000000000000000000000"}})"}) {
    write(checkpoints_ + "/COMMIT", sign_record(json));
    EXPECT_EQ(error_of([&] { read_commit(env_, checkpoints_); }).code(), ErrorCode::damaged) << json;
  }
}

TEST_F(CommitTest, NumbersAreWholeAndInRange) {
  env_.create_dirs(checkpoints_);
  const std::string good =
      R"({"format":"shardwright","version":1,"run":"r","generation":7,"attempt":"7-1","step":9,)"
      R"("manifest":{"name":"manifest.h5","bytes":5,"xxh3_128":"00000000000000000000000000000000"}})";
  write(checkpoints_ + "/COMMIT", sign_record(good));
  EXPECT_EQ(read_commit(env_, checkpoints_).step, 9u);
  for (const char* field : {"\"version\":1", "\"generation\":7", "\"step\":9", "\"bytes\":5"}) {
    const std::string name = std::string(field).substr(0, std::string(field).find(':') + 1);
    for (const char* value : {"-1", "1.5", "1e300", "18446744073709551616", "\"1\"", "null", "[1]", "true"}) {
      std::string bad = good;
      bad.replace(bad.find(field), std::string(field).size(), name + value);
      write(checkpoints_ + "/COMMIT", sign_record(bad));
      EXPECT_EQ(error_of([&] { read_commit(env_, checkpoints_); }).code(), ErrorCode::damaged) << bad;
    }
  }
  for (const std::string& run : std::vector<std::string>{"7", "null", "\"" + std::string(257, 'r') + "\""}) {
    std::string bad = good;
    bad.replace(bad.find("\"r\""), 3, run);
    write(checkpoints_ + "/COMMIT", sign_record(bad));
    EXPECT_EQ(error_of([&] { read_commit(env_, checkpoints_); }).code(), ErrorCode::damaged) << bad;
  }
}

TEST_F(CommitTest, TrainingStateOfAnotherStepIsDamageAndNotCommitted) {
  for (const char* training :
       {R"({"step":6})", R"({"step":-5})", R"({"step":5.5})", R"({"step":"5"})", R"({"step":null})"}) {
    SampleSave save;
    CommitJob job = sample_job(checkpoints_, save);
    for (int rank = 0; rank < save.writers; ++rank) write_sample_rank(env_, checkpoints_, save, rank);
    job.description.training = training;
    EXPECT_THAT(error_of([&] { commit_attempt(env_, job); }).what(), HasSubstr("COMMIT says 5"));
    EXPECT_FALSE(env_.exists(job.final_dir));
    commit_attempt(env_, sample_job(checkpoints_, save));
    Commit commit = read_commit(env_, job.final_dir);
    Manifest manifest = read_manifest(env_, job.final_dir, commit.manifest);
    manifest.description.training = training;
    env_.unlink(job.final_dir + "/manifest.h5");
    commit.manifest = write_manifest(env_, job.final_dir, manifest);
    write_commit(env_, job.final_dir, commit, [] { return true; });
    EXPECT_EQ(error_of([&] { Checkpoint::open(env_, job.final_dir); }).code(), ErrorCode::damaged)
        << training;
    EXPECT_EQ(error_of([&] { check_structure(env_, job.final_dir); }).code(), ErrorCode::damaged) << training;
    EXPECT_THAT(error_of([&] { check_structure(env_, job.final_dir); }).what(), HasSubstr("COMMIT says 5"));
    const VerifyReport report = verify(env_, job.final_dir, 1);
    ASSERT_EQ(report.problems.size(), 1u) << training;
    EXPECT_EQ(report.problems[0].code, "manifest");
    fs::remove_all(job.final_dir);
  }
}

TEST_F(CommitTest, ATrainingStateWithoutAStepIsNobodysBusiness) {
  for (const char* training : {"", "{}", "[5]", "7", "no JSON", R"({"epoch":3})"}) {
    SampleSave save;
    CommitJob job = sample_job(checkpoints_, save);
    for (int rank = 0; rank < save.writers; ++rank) write_sample_rank(env_, checkpoints_, save, rank);
    job.description.training = training;
    commit_attempt(env_, job);
    EXPECT_EQ(Checkpoint::open(env_, job.final_dir).manifest().description.training, training);
    EXPECT_TRUE(verify(env_, job.final_dir, 1).ok()) << training;
    fs::remove_all(job.final_dir);
  }
}

TEST_F(CommitTest, B87_CommittedDirectoryHoldsShardsManifestAndCommitOnly) {
  const std::string path = save_sample(env_, checkpoints_, {});
  EXPECT_EQ(env_.list(path), (std::vector<std::string>{"COMMIT", "manifest.h5", "rank-00000.h5",
                                                       "rank-00001.h5", "rank-00002.h5"}));
  EXPECT_EQ(env_.list(checkpoints_), std::vector<std::string>{"step-0000000005"});
}

TEST_F(CommitTest, B105_NothingIsRenamedBeforeItIsSynced) {
  TraceEnv trace;
  SampleSave save;
  save_sample(trace, checkpoints_, save);
  std::vector<std::string> unsynced;  // files written since their last fsync
  std::vector<std::string> entries;   // directories with changes not yet fsynced
  bool commit_point = false, parent_synced = false;
  for (const TraceOp& op : trace.ops()) {
    const std::string parent = parent_path(op.path);
    switch (op.kind) {
      case TraceOp::create:
      case TraceOp::write:
      case TraceOp::truncate:
        if (std::find(unsynced.begin(), unsynced.end(), op.path) == unsynced.end())
          unsynced.push_back(op.path);
        break;
      case TraceOp::sync:
        std::erase(unsynced, op.path);
        break;
      case TraceOp::sync_dir:
        std::erase(entries, op.path);
        if (commit_point && op.path == checkpoints_) parent_synced = true;
        break;
      case TraceOp::rename:
        EXPECT_EQ(std::count(unsynced.begin(), unsynced.end(), op.path), 0)
            << op.path << " renamed before fsync";
        if (op.to == checkpoints_ + "/step-0000000005") {
          commit_point = true;
          EXPECT_TRUE(unsynced.empty());
          EXPECT_EQ(std::count(entries.begin(), entries.end(), op.path), 0)
              << "directory renamed before its fsync";
        }
        [[fallthrough]];
      case TraceOp::unlink:
        entries.push_back(parent);
        break;
      default:
        break;
    }
  }
  EXPECT_TRUE(commit_point);
  EXPECT_TRUE(parent_synced);
}

TEST_F(CommitTest, MissingPartEndsAtTheDeadlineAndNamesTheRank) {
  SampleSave save;
  save.writers = 5;
  save.deadline_s = 0.05;
  for (int rank : {0, 2, 3}) write_sample_rank(env_, checkpoints_, save, rank);
  const auto start = std::chrono::steady_clock::now();
  const Error e = error_of([&] { commit_attempt(env_, sample_job(checkpoints_, save)); });
  EXPECT_EQ(e.code(), ErrorCode::deadline);
  EXPECT_THAT(e.what(), HasSubstr("rank 1, 4"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_FALSE(env_.exists(checkpoints_ + "/step-0000000005"));
}

TEST_F(CommitTest, PartsThatComeLaterAreWaitedFor) {
  SampleSave save;
  std::thread others([&] {
    for (int rank : {2, 0, 1}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      write_sample_rank(env_, checkpoints_, save, rank);
    }
  });
  commit_attempt(env_, sample_job(checkpoints_, save));
  others.join();
  expect_sample(Checkpoint::open(env_, checkpoints_ + "/step-0000000005"), 5);
}

TEST_F(CommitTest, B91_FailedPartEndsTheSaveAtOnceWithItsReason) {
  SampleSave save;
  save.deadline_s = 60;
  write_sample_rank(env_, checkpoints_, save, 0);
  Part failed;
  failed.attempt = save.attempt();
  failed.rank = 2;
  failed.step = save.step;
  failed.error = "/data/rank-00002.h5: is a directory";
  publish_part(env_, save.attempt_dir(checkpoints_), failed);
  const Error e = error_of([&] { commit_attempt(env_, sample_job(checkpoints_, save)); });
  EXPECT_EQ(e.code(), ErrorCode::peer);
  EXPECT_THAT(e.what(), HasSubstr("rank 2"));
  EXPECT_THAT(e.what(), HasSubstr("/data/rank-00002.h5"));
}

TEST_F(CommitTest, CancelEndsTheWaitPromptly) {
  SampleSave save;
  save.deadline_s = 60;
  write_sample_rank(env_, checkpoints_, save, 0);
  std::atomic<bool> cancel{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    cancel = true;
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of([&] { commit_attempt(env_, sample_job(checkpoints_, save), &cancel); }).code(),
            ErrorCode::peer);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  later.join();
}

TEST_F(CommitTest, PartOfAnotherAttemptIsRefused) {
  SampleSave save, other;
  other.save_number = 2;
  for (int rank : {0, 1}) write_sample_rank(env_, checkpoints_, save, rank);
  write_sample_rank(env_, checkpoints_, other, 2);
  fs::copy(other.attempt_dir(checkpoints_) + "/rank-00002.part",
           save.attempt_dir(checkpoints_) + "/rank-00002.part");
  EXPECT_THAT(error_of([&] { commit_attempt(env_, sample_job(checkpoints_, save)); }).what(),
              HasSubstr("attempt 0-2"));
}

TEST_F(CommitTest, HoleBetweenWritersIsRefused) {
  SampleSave save;
  for (int rank : {0, 1}) write_sample_rank(env_, checkpoints_, save, rank);
  Part empty;
  empty.attempt = save.attempt();
  empty.rank = 2;
  empty.step = save.step;
  publish_part(env_, save.attempt_dir(checkpoints_), empty);
  const Error e = error_of([&] { commit_attempt(env_, sample_job(checkpoints_, save)); });
  EXPECT_EQ(e.code(), ErrorCode::usage);
  EXPECT_THAT(e.what(), HasSubstr("in no box"));
  EXPECT_FALSE(env_.exists(checkpoints_ + "/step-0000000005"));
}

TEST_F(CommitTest, StaleGenerationChangesNothing) {
  const std::string first = save_sample(env_, checkpoints_, {});
  const std::string before = read(first + "/COMMIT");
  SampleSave again;
  again.save_number = 2;
  for (int rank = 0; rank < 3; ++rank) write_sample_rank(env_, checkpoints_, again, rank);
  // The other generation takes over before the first, second, ... time that the committer asks.
  for (int good = 0;; ++good) {
    CommitJob job = sample_job(checkpoints_, again);
    int asked = 0;
    job.still_mine = [&] { return asked++ < good; };
    std::error_code ignored;
    fs::remove_all(dir_ / "copy", ignored);
    fs::copy(checkpoints_, dir_ / "copy", fs::copy_options::recursive);
    job.attempt_dir = again.attempt_dir(dir_ / "copy");
    job.final_dir = dir_ / "copy/step-0000000005";
    try {
      commit_attempt(env_, job);
      EXPECT_EQ(good, 3) << "asked before the parts go, before COMMIT and before the commit point";
      break;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::busy);
      EXPECT_EQ(read(job.final_dir + "/COMMIT"), before) << good;
    }
    ASSERT_LT(good, 20);
  }
}

TEST_F(CommitTest, B113_ExistingStepIsSupersededWholeOrRefused) {
  save_sample(env_, checkpoints_, {});
  SampleSave again;
  again.generation = 1;
  again.writers = 2;
  again.supersede_suffix = ".superseded-1";
  save_sample(env_, checkpoints_, again);
  EXPECT_EQ(read_commit(env_, checkpoints_ + "/step-0000000005").generation, 1u);
  EXPECT_EQ(read_commit(env_, checkpoints_ + "/step-0000000005.superseded-1").generation, 0u);
  expect_sample(Checkpoint::open(env_, checkpoints_ + "/step-0000000005"), 5);

  SampleSave refused = again;
  refused.save_number = 9;
  refused.supersede_suffix = "";
  for (int rank = 0; rank < 2; ++rank) write_sample_rank(env_, checkpoints_, refused, rank);
  EXPECT_EQ(error_of([&] { commit_attempt(env_, sample_job(checkpoints_, refused)); }).code(),
            ErrorCode::exists);
}

TEST_F(CommitTest, BeforeCommitSeesTheManifestAndCanStopIt) {
  SampleSave save;
  for (int rank = 0; rank < 3; ++rank) write_sample_rank(env_, checkpoints_, save, rank);
  CommitJob job = sample_job(checkpoints_, save);
  std::size_t states = 0;
  job.before_commit = [&](const Manifest& m) {
    states = m.states.size();
    throw Error(ErrorCode::mismatch, "proof: fails");
  };
  EXPECT_EQ(error_of([&] { commit_attempt(env_, job); }).code(), ErrorCode::mismatch);
  EXPECT_EQ(states, sample_states().size());
  EXPECT_FALSE(env_.exists(job.attempt_dir + "/COMMIT"));
}

TEST(TrainingStep, IsThatOfTheTopObjectWhateverElseIsInTheDocument) {
  Commit commit;
  commit.step = 5;
  const auto accepts = [&](std::string training) {
    Manifest m;
    m.description.training = std::move(training);
    try {
      check_training_step("c", commit, m);
      return true;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::damaged);
      return false;
    }
  };
  for (const char* good :
       {"", "{}", "7", "[]", "no JSON", R"({"step":5})", R"({"step":9,"step":5})",
        R"({"a":{"step":9},"b":[{"step":9}],"step":5})", R"([{"step":9}])", R"({"step":9,"x":NaN})"})
    EXPECT_TRUE(accepts(good)) << good;
  for (const char* bad : {R"({"step":4})", R"({"step":5.0})", R"({"step":"5"})", R"({"step":-5})",
                          R"({"step":null})", R"({"step":[5]})", R"({"step":{}})", R"({"step":5,"step":6})"})
    EXPECT_FALSE(accepts(bad)) << bad;
  // Neither depth nor size is kept in memory.
  EXPECT_TRUE(accepts(std::string(5'000'000, '[')));
  EXPECT_FALSE(
      accepts(R"({"step":6,"x":)" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}"));
}

TEST_F(CommitTest, B114_LatestIsRelativeAndReplacedWhateverItIs) {
  const std::string path = save_sample(env_, checkpoints_, {});
  fs::create_symlink("LATEST", checkpoints_ + "/LATEST");  // a loop
  write_latest(env_, checkpoints_, "step-0000000005");
  EXPECT_EQ(read(checkpoints_ + "/LATEST"), "step-0000000005\n");
  fs::rename(checkpoints_, dir_ / "elsewhere");
  EXPECT_TRUE(fs::exists(dir_ / "elsewhere/step-0000000005/COMMIT"));
}

}  // namespace
}  // namespace shardwright::ckpt
