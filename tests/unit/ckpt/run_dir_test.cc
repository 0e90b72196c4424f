#include "ckpt/run_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/digest.h"
#include "ckpt/record_fields.h"
#include "ckpt/scan.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunDirTest : public ::testing::Test {
 protected:
  Started begin() { return begin_generation(env_, run_, checkpoints_); }

  /// All of a save but the rename of the directory: COMMIT is complete.
  void save_up_to_commit_point(const SampleSave& save) {
    SampleSave elsewhere = save;
    const std::string scratch = dir_ / "scratch";
    const std::string path = save_sample(env_, scratch, elsewhere);
    env_.create_dirs(checkpoints_);
    fs::rename(path, save.attempt_dir(checkpoints_));
  }

  SampleSave of_generation(const Generation& generation, std::uint64_t step) {
    SampleSave save;
    save.run = generation.run;
    save.generation = generation.number;
    save.step = step;
    save.supersede_suffix = ".superseded-" + std::to_string(generation.number);
    return save;
  }

  TempDir dir_;
  std::string run_ = dir_ / "a/run";
  std::string checkpoints_ = dir_ / "a/run/checkpoints";
  Env& env_ = posix_env();
};

TEST_F(RunDirTest, GenerationsCountFromZeroAndKeepTheRun) {
  EXPECT_EQ(error_of([&] { read_generation(env_, run_); }).code(), ErrorCode::missing);
  const Started first = begin();
  EXPECT_EQ(first.generation.number, 0u);
  EXPECT_EQ(first.generation.run.size(), 36u);
  const Started second = begin();
  EXPECT_EQ(second.generation.number, 1u);
  EXPECT_EQ(second.generation.run, first.generation.run);
  EXPECT_EQ(read_generation(env_, run_).number, 1u);
  EXPECT_EQ(read_file(env_, run_ + "/GENERATION"),
            sign_record("{\"run\":\"" + first.generation.run + "\",\"generation\":1}"));
}

TEST_F(RunDirTest, ALostGenerationComesAfterAllThatIsLeft) {
  const Generation first = begin().generation;
  SampleSave save = of_generation(first, 7);
  save.generation = 3;
  save_sample(env_, checkpoints_, save);
  const std::string path = run_ + "/GENERATION";
  const std::string whole = read_file(env_, path);
  std::string changed = whole;
  changed[20] = changed[20] == '0' ? '1' : '0';  // a digit of the run's random name
  const std::vector<std::string> damaged = {
      "",
      whole.substr(0, whole.size() / 2),
      changed,
      sign_record("[]"),
      sign_record(R"({"run":5,"generation":9})"),
      sign_record(R"({"run":"r","generation":-1})"),
      sign_record(R"({"run":"r","generation":1.5})"),
      sign_record(R"({"run":"r","generation":9007199254740992})"),
      sign_record(R"({"run":"r","generation":18446744073709551615})"),
      sign_record(R"({"run":")" + std::string(3000, 'r') + R"(","generation":9})"),
  };
  for (const std::string& contents : damaged) {
    replace_file(env_, path, contents);
    const Started next = begin();
    EXPECT_EQ(next.generation.number, 4u) << contents;
    EXPECT_EQ(next.generation.run, first.run) << contents;
    EXPECT_THAT(next.recovered, HasSubstr(path));
  }
  EXPECT_EQ(begin().recovered, "");
  env_.unlink(path);
  const Started next = begin();
  EXPECT_EQ(next.generation.number, 4u);
  EXPECT_THAT(next.recovered, HasSubstr("not there"));
}

TEST_F(RunDirTest, ALostGenerationIsFoundInNamesAndRecordsToo) {
  const auto number = [&](std::optional<std::uint64_t> recorded) {
    env_.unlink(run_ + "/GENERATION");
    return begin_generation(env_, run_, checkpoints_, [&] { return recorded; }).generation.number;
  };
  EXPECT_EQ(number({}), 0u);  // no trace: a new run
  EXPECT_EQ(number(6), 7u);
  env_.create_dirs(checkpoints_ + "/step-0000000005.superseded-8");
  EXPECT_EQ(number(6), 9u);
  env_.create_dirs(checkpoints_ + "/step-0000000006.superseded-18446744073709551615");  // no generation
  EXPECT_EQ(number(6), 9u);
  env_.create_dirs(checkpoints_ + "/step-0000000005.tmp-11-2");
  EXPECT_EQ(number(6), 12u);
  EXPECT_EQ(number(kEndOfGenerations), 9u);  // no generation; the attempt is gone by now
}

TEST_F(RunDirTest, TheRunOfALostGenerationIsThatOfTheNewestCheckpoint) {
  for (const std::uint64_t step : {5, 9, 7}) {
    SampleSave save;
    save.run = "run-" + std::to_string(step);
    save.generation = 20 - step;
    save.step = step;
    save_sample(env_, checkpoints_, save);
  }
  fs::rename(checkpoints_ + "/step-0000000009", checkpoints_ + "/step-0000000009.superseded-1");
  const Generation next = begin().generation;
  EXPECT_EQ(next.run, "run-7");
  EXPECT_EQ(next.number, 16u);
}

TEST_F(RunDirTest, AFinishedAttemptIsPromotedAlsoWhereGenerationIsLost) {
  const Generation g = begin().generation;
  save_up_to_commit_point(of_generation(g, 7));
  env_.unlink(run_ + "/GENERATION");
  const Started next = begin();
  EXPECT_THAT(next.promoted, ElementsAre(checkpoints_ + "/step-0000000007"));
  EXPECT_EQ(next.generation.number, 1u);
}

TEST_F(RunDirTest, LockKeepsASecondOneOut) {
  const RunLock lock(env_, run_);
  EXPECT_EQ(error_of([&] { const RunLock second(env_, run_); }).code(), ErrorCode::busy);
}

TEST_F(RunDirTest, B103_LeftoversAreTrashedAndForeignNamesStay) {
  const Generation g = begin().generation;
  write_sample_rank(env_, checkpoints_, of_generation(g, 7), 0);
  env_.create_dirs(checkpoints_ + "/step-0000000003.trash-0-9");
  env_.create_dirs(checkpoints_ + "/step-0000000003.backup");
  env_.create_dirs(checkpoints_ + "/notes.tmp-1");
  const Started next = begin();
  EXPECT_TRUE(next.promoted.empty());
  EXPECT_EQ(next.removed.size(), 2u);
  EXPECT_THAT(env_.list(checkpoints_), ElementsAre("notes.tmp-1", "step-0000000003.backup"));
}

TEST_F(RunDirTest, TemporaryFilesOfAKilledStartAreGone) {
  begin();
  for (const std::string& name : {run_ + "/GENERATION.new", checkpoints_ + "/LATEST.new"})
    env_.create(name)->write(0, std::as_bytes(std::span("torn")));
  begin();
  for (const std::string& directory : {run_, checkpoints_})
    for (const std::string& entry : env_.list(directory)) EXPECT_FALSE(entry.ends_with(".new")) << entry;
}

TEST_F(RunDirTest, FinishedAttemptOfTheLastGenerationIsPromoted) {
  const Generation g = begin().generation;
  save_up_to_commit_point(of_generation(g, 7));
  const Started next = begin();
  EXPECT_THAT(next.promoted, ElementsAre(checkpoints_ + "/step-0000000007"));
  expect_sample(Checkpoint::open(env_, next.promoted[0]), 7);
}

TEST_F(RunDirTest, PromotionSupersedesAnExistingStep) {
  const Generation g = begin().generation;
  save_sample(env_, checkpoints_, of_generation(g, 7));
  const Generation h = begin().generation;
  save_up_to_commit_point(of_generation(h, 7));
  begin();
  EXPECT_EQ(read_commit(env_, checkpoints_ + "/step-0000000007").generation, 1u);
  EXPECT_EQ(read_commit(env_, checkpoints_ + "/step-0000000007.superseded-2").generation, 0u);
}

TEST_F(RunDirTest, PromotionKilledHalfWayIsFinished) {
  const Generation g = begin().generation;
  save_sample(env_, checkpoints_, of_generation(g, 7));
  const Generation h = begin().generation;
  save_up_to_commit_point(of_generation(h, 7));
  // Generation 2 was killed after it had moved the old step aside.
  replace_file(env_, run_ + "/GENERATION", sign_record("{\"run\":\"" + g.run + "\",\"generation\":2}"));
  fs::rename(checkpoints_ + "/step-0000000007", checkpoints_ + "/step-0000000007.superseded-2");
  EXPECT_THAT(begin().promoted, ElementsAre(checkpoints_ + "/step-0000000007"));
  EXPECT_EQ(read_commit(env_, checkpoints_ + "/step-0000000007").generation, 1u);
}

TEST_F(RunDirTest, OldForeignOrDamagedAttemptsAreNotPromoted) {
  const Generation g = begin().generation;
  begin();
  save_up_to_commit_point(of_generation(g, 3));  // a generation too old
  SampleSave foreign = of_generation(read_generation(env_, run_), 4);
  foreign.run = "another run";
  save_up_to_commit_point(foreign);
  SampleSave broken = of_generation(read_generation(env_, run_), 5);
  save_up_to_commit_point(broken);
  fs::resize_file(broken.attempt_dir(checkpoints_) + "/rank-00001.h5", 100);
  EXPECT_TRUE(begin().promoted.empty());
  EXPECT_TRUE(env_.list(checkpoints_).empty());
}

TEST_F(RunDirTest, GoingBackSupersedesWhatIsNewer) {
  const Generation g = begin().generation;
  for (std::uint64_t step : {4, 5, 6}) save_sample(env_, checkpoints_, of_generation(g, step));
  const Generation h = begin().generation;
  EXPECT_THAT(supersede_newer(env_, checkpoints_, 4, false, h),
              ElementsAre(checkpoints_ + "/step-0000000005.superseded-1",
                          checkpoints_ + "/step-0000000006.superseded-1"));
  EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr)->commit.step, 4u);
  save_sample(env_, checkpoints_, of_generation(h, 5));
  EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr)->commit.step, 5u);
  EXPECT_EQ(supersede_newer(env_, checkpoints_, 0, true, begin().generation).size(), 2u);
  EXPECT_EQ(newest_valid(env_, checkpoints_, nullptr), std::nullopt);
}

}  // namespace
}  // namespace shardwright::ckpt
