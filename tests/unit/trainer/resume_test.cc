// Saving and resuming as the training loop does it, with a rank alone and real files.
#include "trainer/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/commit.h"
#include "reshard/layout.h"
#include "tests/tools/temp_dir.h"
#include "trainer/agreement.h"
#include "trainer/checkpointing.h"

namespace shardwright::trainer {
namespace {

using testing::HasSubstr;

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() {
    config_.run_dir = dir_ / "run";
    config_.checkpoints_dir = dir_ / "run/checkpoints";
    config_.model.layers = 1;
    config_.model.hidden = 12;
    config_.model.heads = 3;
    config_.model.ffn = 21;
    config_.model.vocab = 33;
    config_.model.seq_len = 8;
    config_.model = reshard::build_model(config_.model).config;
    config_.train.seed = 7;
    config_.train.global_batch = 4;
    initial_.seed = 7;
    initial_.global_batch = 4;
    initial_.data = "u16:99:aa";
    begin();
  }

  // The next generation, as a new start of the command.
  void begin() {
    generation_ = ckpt::begin_generation(env_, config_.run_dir, config_.checkpoints_dir).generation;
    checkpointing_.reset();
    ckpt::SaverOptions options;
    options.run_dir = config_.run_dir;
    options.checkpoints_dir = config_.checkpoints_dir;
    options.run = generation_.run;
    options.generation = generation_.number;
    options.commit_deadline_s = 5;
    options.shard.verify_writes = true;
    checkpointing_ =
        std::make_unique<Checkpointing>(env_, options, config_.checkpoint, *self_, progress_,
                                        [this](const ckpt::SaveOutcome& o) { outcomes_.push_back(o); });
  }

  // Saves parameters drawn by `step` as the state of that step.
  void save(std::int64_t step, bool must = true) {
    parameters_.initialise(static_cast<std::uint64_t>(step));
    TrainingState state = initial_;
    state.step = step;
    state.samples = 4 * step;
    ckpt::Description description;
    description.training = to_json(state);
    description.model = reshard::to_json(parameters_.model().config);
    description.config = to_json(config_);
    description.layout = reshard::to_json(parameters_.layout(), parameters_.model());
    checkpointing_->due(step, parameters_.save_items(), {}, description, must);
  }

  Start resume(Resume mode = Resume::automatic, const std::string& path = "", bool accept = false) {
    return begin_from(env_, *self_, config_, {mode, path, accept, 1}, initial_, parameters_);
  }

  Error refusal(Resume mode = Resume::automatic, const std::string& path = "") {
    try {
      resume(mode, path);
    } catch (const AgreedError& error) {
      return error;
    }
    ADD_FAILURE() << "not refused";
    return Error(ErrorCode::io, "");
  }

  float drawn(std::int64_t step) {
    Parameters other(parameters_.model(), parameters_.layout(), 0);
    other.initialise(static_cast<std::uint64_t>(step));
    return other.all()[0].value.f32()[5];
  }
  float here() { return parameters_.all()[0].value.f32()[5]; }
  std::string step_dir(std::int64_t step) {
    return config_.checkpoints_dir + "/" + ckpt::step_dir_name(static_cast<std::uint64_t>(step));
  }
  void flip(const std::string& path, std::uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
  }

  TempDir dir_;
  ckpt::Env& env_ = ckpt::posix_env();
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  Progress progress_{ProgressOptions{}};
  Config config_;
  TrainingState initial_;
  ckpt::Generation generation_;
  std::unique_ptr<Checkpointing> checkpointing_;
  std::vector<ckpt::SaveOutcome> outcomes_;
  Parameters parameters_{reshard::build_model([] {
                           reshard::ModelConfig m;
                           m.layers = 1;
                           m.hidden = 12;
                           m.heads = 3;
                           m.ffn = 21;
                           m.vocab = 33;
                           m.seq_len = 8;
                           return m;
                         }()),
                         reshard::Layout{}, 0};
};

TEST_F(ResumeTest, B142_NothingThereIsAFreshStart) {
  const Start start = resume();
  EXPECT_TRUE(start.fresh);
  EXPECT_EQ(start.state, initial_);
  EXPECT_EQ(here(), drawn(7));
  EXPECT_TRUE(resume(Resume::never).fresh);
  const Error error = refusal(Resume::must);
  EXPECT_EQ(exit_status(error.code()), 1);
}

TEST_F(ResumeTest, NewestIsTakenAndNeverRefuses) {
  save(2);
  save(10);
  checkpointing_->settle();
  EXPECT_EQ(checkpointing_->last_failure(), "");
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_EQ(outcomes_[1].result, ckpt::SaveResult::committed) << outcomes_[1].reason;
  begin();
  const Start start = resume();
  EXPECT_FALSE(start.fresh);
  EXPECT_EQ(start.path, step_dir(10));
  EXPECT_EQ(start.state.step, 10);
  EXPECT_EQ(start.state.samples, 40);
  EXPECT_EQ(here(), drawn(10));
  EXPECT_EQ(exit_status(refusal(Resume::never).code()), 2);
  EXPECT_TRUE(supersede(env_, *self_, config_, start, generation_).empty());
}

TEST_F(ResumeTest, DamagedContentFallsToTheNextOlderAndIsSuperseded) {
  for (std::int64_t step : {2, 4, 6}) save(step);
  checkpointing_->settle();
  begin();
  // 6 lacks its shard (seen by the scan), 4 has a flipped bit in a stored chunk (seen when loading).
  std::filesystem::remove(step_dir(6) + "/rank-00000.h5");
  const ckpt::Checkpoint open = ckpt::Checkpoint::open(env_, step_dir(4));
  flip(step_dir(4) + "/rank-00000.h5", open.shard(0).table()[0].address + 12);
  const Start start = resume();
  EXPECT_EQ(start.path, step_dir(2));
  EXPECT_EQ(here(), drawn(2));
  ASSERT_EQ(start.passed_over.size(), 2u);
  EXPECT_EQ(start.passed_over[0].path, step_dir(6));
  EXPECT_EQ(start.passed_over[1].path, step_dir(4));
  EXPECT_THAT(start.passed_over[1].reason, HasSubstr("rank-00000.h5"));
  EXPECT_EQ(supersede(env_, *self_, config_, start, generation_).size(), 2u);
  EXPECT_EQ(resume().path, step_dir(2));
}

TEST_F(ResumeTest, B101_NoneValidIsAnErrorNotANewBeginning) {
  save(2);
  checkpointing_->settle();
  std::filesystem::remove(step_dir(2) + "/manifest.h5");
  const Error error = refusal();
  EXPECT_EQ(exit_status(error.code()), 1);
  EXPECT_THAT(error.what(), HasSubstr("manifest.h5"));
}

TEST_F(ResumeTest, ANamedOneIsNeverReplaced) {
  save(2);
  save(4);
  checkpointing_->settle();
  std::filesystem::remove(step_dir(4) + "/rank-00000.h5");
  EXPECT_EQ(exit_status(refusal(Resume::path, step_dir(4)).code()), 1);
  EXPECT_EQ(exit_status(refusal(Resume::path, step_dir(8)).code()), 2);
  const Start start = resume(Resume::path, step_dir(2));
  EXPECT_FALSE(start.supersede_all);
  EXPECT_EQ(start.state.step, 2);
}

TEST_F(ResumeTest, AnotherRunsSupersedesAll) {
  save(2);
  checkpointing_->settle();
  const std::string other = dir_ / "elsewhere";
  std::filesystem::rename(step_dir(2), other);
  save(5);
  checkpointing_->settle();
  begin();
  const Start start = resume(Resume::path, other);
  EXPECT_TRUE(start.supersede_all);
  EXPECT_EQ(supersede(env_, *self_, config_, start, generation_).size(), 1u);
  // Only superseded ones left is not "nothing there".
  EXPECT_EQ(exit_status(refusal().code()), 1);
}

TEST_F(ResumeTest, ChangesAreRefusedUnlessAcceptedAndNeverForTheModel) {
  save(2);
  checkpointing_->settle();
  initial_.seed = 8;
  initial_.data = "u16:98:bb";
  const Error error = refusal();
  EXPECT_EQ(exit_status(error.code()), 2);
  EXPECT_THAT(error.what(), HasSubstr("train.seed: 7"));
  EXPECT_THAT(error.what(), HasSubstr("data.train"));
  EXPECT_THAT(error.what(), HasSubstr("--accept-changes"));
  const Start start = resume(Resume::automatic, "", true);
  EXPECT_EQ(start.comparison.refused.size(), 2u);
  EXPECT_EQ(start.state.seed, 8u);
  EXPECT_EQ(start.state.step, 2);

  reshard::ModelConfig wider = config_.model;
  wider.ffn = 24;
  Parameters other(reshard::build_model(wider), reshard::Layout{}, 0);
  try {
    begin_from(env_, *self_, config_, {Resume::automatic, "", true, 1}, initial_, other);
    FAIL();
  } catch (const AgreedError& e) {
    EXPECT_EQ(e.code(), ErrorCode::mismatch);
    EXPECT_THAT(e.what(), HasSubstr("ffn"));
  }
}

TEST_F(ResumeTest, B56_PermittedChangesAreSaid) {
  save(2);
  checkpointing_->settle();
  config_.optim.beta2 = 0.999;
  config_.train.steps = 99;
  config_.parallel.layout = reshard::parse_layout("t1d2z1");
  const Start start = resume();
  std::vector<std::string> fields;
  for (const Difference& d : start.comparison.permitted) fields.push_back(d.field);
  EXPECT_THAT(fields, testing::UnorderedElementsAre("optim.beta2", "train.steps", "layout"));
}

TEST_F(ResumeTest, B91_AFailedSaveIsToldAndDiscarded) {
  save(2);
  checkpointing_->settle();
  // The next attempt's shard cannot be made: a directory has its name.
  std::filesystem::create_directories(step_dir(4) + ".tmp-0-1/rank-00000.h5");
  save(4);
  checkpointing_->settle();
  EXPECT_THAT(checkpointing_->last_failure(), HasSubstr("rank-00000.h5"));
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_EQ(outcomes_[1].result, ckpt::SaveResult::failed);
  save(6);
  checkpointing_->settle();
  EXPECT_EQ(checkpointing_->last_failure(), "");
  begin();
  EXPECT_EQ(resume().state.step, 6);
}

TEST_F(ResumeTest, B81_BusySavesAreSkippedOrWaitedForAsAsked) {
  config_.checkpoint.on_busy = "skip";
  begin();
  save(1, false);
  save(2, false);  // the words still say busy: no step has asked since
  save(3, true);
  checkpointing_->settle();
  ASSERT_EQ(outcomes_.size(), 3u);
  std::map<std::uint64_t, ckpt::SaveResult> results;
  for (const ckpt::SaveOutcome& o : outcomes_) results[o.step] = o.result;
  EXPECT_EQ(results, (std::map<std::uint64_t, ckpt::SaveResult>{{1, ckpt::SaveResult::committed},
                                                                {2, ckpt::SaveResult::skipped},
                                                                {3, ckpt::SaveResult::committed}}));
  EXPECT_GT(checkpointing_->take_stall_ms(), 0);
  const SaveCounts& counts = checkpointing_->counts();
  EXPECT_EQ(counts.committed, 2);
  EXPECT_EQ(counts.failed, 0);
  EXPECT_EQ(counts.skipped, 1);
  EXPECT_EQ(counts.waits, 1);  // step 3's, which must not be skipped
  EXPECT_GT(counts.wait_ms, 0);
}

}  // namespace
}  // namespace shardwright::trainer
