// What happens between start() and the moment when the state changes, where saving is lazy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/fault.h"
#include "ckpt/run_dir.h"
#include "ckpt/saver.h"
#include "ckpt/scan.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

using ::testing::HasSubstr;

class SaverWindowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.checkpoints_dir = dir_ / "run/checkpoints";
    options_.run_dir = dir_ / "run";
    const Generation generation =
        begin_generation(posix_env(), options_.run_dir, options_.checkpoints_dir).generation;
    options_.run = generation.run;
    options_.generation = generation.number;
    options_.commit_deadline_s = 20;
    options_.shard.threads = 2;
    options_.lazy = true;
  }
  void TearDown() override { set_fault(""); }

  /// Starts a save and then changes all of the state, as an optimizer step does.
  std::vector<std::weak_ptr<const Source>> start_and_change(Saver& saver, std::uint64_t step) {
    SaveRequest request{step, step, sample_items(0, 1, step), sample_description(step)};
    const std::vector<SaveItem> items = request.items;
    saver.start(std::move(request));
    std::vector<std::weak_ptr<const Source>> sources;
    for (const SaveItem& item : items) {
      saver.before_write(item.tensor, item.kind, Box::whole(item.global_shape));
      auto& values =
          std::const_pointer_cast<OwnedSource>(std::static_pointer_cast<const OwnedSource>(item.source))
              ->values();
      std::fill(values.begin(), values.end(), std::byte{0xAB});
      sources.push_back(item.source);
    }
    return sources;
  }

  SaveOutcome outcome(Saver& saver) {
    saver.wait(30);
    std::vector<SaveOutcome> all = saver.take_outcomes();
    return all.empty() ? SaveOutcome{} : std::move(all.back());
  }

  TempDir dir_;
  SaverOptions options_;
};

TEST_F(SaverWindowTest, AFailureInTheWindowEndsThatSaveAlone) {
  Saver saver(posix_env(), options_);
  set_fault("save.window:step=2:nth=1=eio");
  // The save may be as good as done when it is told; here it waits for another rank's part.
  SaverOptions waiting = options_;
  waiting.writers = 2;
  Saver other(posix_env(), waiting);
  start_and_change(other, 2);
  const SaveOutcome failed = outcome(other);
  EXPECT_EQ(failed.result, SaveResult::failed);
  EXPECT_THAT(failed.reason, HasSubstr("save.window"));
  other.discard(failed.attempt, 2);
  start_and_change(saver, 3);
  EXPECT_EQ(outcome(saver).result, SaveResult::committed);
  expect_sample(Checkpoint::open(posix_env(), options_.checkpoints_dir + "/" + step_dir_name(3)), 3);
}

// The disk dies at each operation of a save in turn, while everything that is saved changes.
TEST_F(SaverWindowTest, ADeadDiskFailsTheSaveAndReleasesItsMemory) {
  TraceEnv failing;
  Saver saver(failing, options_);
  start_and_change(saver, 1);
  ASSERT_EQ(outcome(saver).result, SaveResult::committed);
  const std::size_t operations = failing.ops().size();
  ASSERT_GT(operations, 20u);
  for (std::uint64_t n = 0; n < 12; ++n) {
    const std::uint64_t step = n + 2;
    failing.fail_at(failing.ops().size() + operations * n / 13, n % 2 == 0 ? EIO : ENOSPC, true);
    const auto sources = start_and_change(saver, step);
    const SaveOutcome failed = outcome(saver);
    failing.stop_failing();
    EXPECT_EQ(failed.result, SaveResult::failed) << step;
    EXPECT_FALSE(failed.reason.empty()) << step;
    // Copies that were kept live and die with the snapshot, and so do its hold on the sources.
    for (const auto& source : sources) EXPECT_TRUE(source.expired()) << step;
    saver.discard(failed.attempt, step);
    EXPECT_EQ(newest_valid(posix_env(), options_.checkpoints_dir, nullptr)->commit.step, 1u) << step;
  }
  start_and_change(saver, 20);
  EXPECT_EQ(outcome(saver).result, SaveResult::committed);
  expect_sample(Checkpoint::open(posix_env(), options_.checkpoints_dir + "/" + step_dir_name(20)), 20);
}

}  // namespace
}  // namespace shardwright::ckpt
