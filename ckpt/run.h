// Saving from many processes without a trainer and without MPI: one process owns a run, those that it starts
// write its checkpoints together. They meet in the file system only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/contents.h"
#include "ckpt/env.h"
#include "ckpt/run_dir.h"
#include "ckpt/shard_options.h"
#include "ckpt/source.h"

namespace shardwright::ckpt {

/// Where a run keeps its checkpoints: `directory`/checkpoints.
std::string checkpoints_of(const std::string& run_directory);

/// The right to a run: held by one process at a time, the one that starts the others, for as long as they
/// live. Not thread-safe.
class Run {
 public:
  /// Creates the directory where it is new, takes the run's lock, starts its next generation and tidies what
  /// earlier ones left: from here on no process of an earlier generation commits or removes anything.
  /// Error(busy) if another process has the run; io, no_space.
  explicit Run(const std::string& directory, Env& env = posix_env());

  /// What every writer of this start needs to know.
  std::uint64_t generation() const { return started_.generation.number; }
  /// The same, with what was promoted and removed on the way.
  const Started& started() const { return started_; }

  /// Path of the newest valid checkpoint, nothing in a run without any. Structural: loading checks each value
  /// that it reads. Error(damaged) if there are checkpoints and none is valid.
  std::optional<std::string> newest() const;

  /// For a run that goes on from another checkpoint than its newest: moves all after `step` aside (without
  /// `step` all of them), so that two pasts never mix. Before the first save. Returns the new paths.
  std::vector<std::string> go_on_from(std::optional<std::uint64_t> step);

 private:
  Env& env_;
  std::string directory_;
  RunLock lock_;
  std::unique_ptr<RunLock> checkpoints_lock_;
  Started started_;
};

struct RunWriterOptions {
  int rank = 0;     // rank 0 also commits
  int writers = 1;  // processes that save together
  /// From start() on, the save is committed within this time or given up by rank 0. The others wait a quarter
  /// longer for news of it.
  double deadline_s = 120;
  int keep = 0;  // newest valid checkpoints kept; 0: all
  ShardOptions shard = {};
};

/// One process' part in the saves of a run. All writers make the same saves in the same order, each with its
/// own boxes (possibly none). Calls come from one thread; a thread of its own works behind it, so a process
/// that forks makes its writers after that.
class RunWriter {
 public:
  /// Joins `generation` of a run, as its owner gave it. Error(busy) if the run is in another by now,
  /// Error(usage) for a rank that is none of the writers.
  RunWriter(const std::string& directory, std::uint64_t generation, const RunWriterOptions& options,
            Env& env = posix_env());
  RunWriter(RunWriter&&) noexcept;
  /// Gives up a save that is still running.
  ~RunWriter();

  /// Copies the items and returns; they may change from then on. `description` counts on rank 0: JSON
  /// objects, a `step` in the training one is this one, and empty ones become `{}`. Error(busy) before the
  /// wait() for the save before; Error(usage) for a step of more than ten digits. What is wrong with an item
  /// or a document is told by every rank's wait().
  void start(std::uint64_t step, const std::vector<SaveItem>& items, Description description = {});
  /// The same without a copy: the items' memory is read until wait() has returned or thrown, and stays as it
  /// is for as long, but for what before_write() was called for.
  void start_lent(std::uint64_t step, const std::vector<SaveItem>& items, Description description = {});
  /// `box` of (tensor, kind) may change once it has returned: what of it was not yet saved is copied first.
  void before_write(const std::string& tensor, const std::string& kind, const Box& box);

  /// Returns the path once the checkpoint is committed, or throws why it is not: this rank's own Error;
  /// Error(peer) if another rank failed (rank 0 names it); Error(deadline) if it was not committed in time
  /// (by rank 0's clock; elsewhere it means no news, and a rank 0 that is merely late may still commit). The
  /// save is over here then, and another may be started. Error(usage) if none was.
  std::string wait();

  /// start_lent(), then wait().
  std::string save(std::uint64_t step, const std::vector<SaveItem>& items, Description description = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::ckpt
