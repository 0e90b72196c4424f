// From finished shards to a checkpoint that a scan may select: COMMIT, the attempt directory, the order of
// fsyncs and renames (FORMAT.md, "Commit order"), and the retention that follows.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/manifest.h"

namespace shardwright::ckpt {

/// Reads `directory`/COMMIT. Error(incomplete) if there is none or it is torn, Error(damaged) if its digest
/// is wrong, Error(future_version) if its version is newer (checked before anything else of it is
/// interpreted).
Commit read_commit(Env& env, const std::string& directory);

/// Error(damaged) if the training state in the manifest of the checkpoint at `path` has a `step` other than
/// COMMIT's. A program that keeps no training state, or one without a step, has nothing to compare.
void check_training_step(const std::string& path, const Commit& commit, const Manifest& manifest);

/// "step-0000000120"
std::string step_dir_name(std::uint64_t step);
/// The step of exactly such a name; nothing for any other (".tmp-", ".superseded-", ...).
std::optional<std::uint64_t> parse_step_dir(const std::string& name);

/// Writes `directory`/COMMIT: temporary name, fsync, rename, fsync of the directory. Fault points
/// commit.write and commit.rename. `still_mine` is asked just before the rename; false is Error(busy).
void write_commit(Env& env, const std::string& directory, const Commit& commit,
                  const std::function<bool()>& still_mine);

/// Replaces `checkpoints_dir`/LATEST by the name of a checkpoint in it: a hint for people, relative so that
/// it survives moving the tree. Nothing in this program reads it.
void write_latest(Env& env, const std::string& checkpoints_dir, const std::string& name);

/// `wanted`, or the first of `wanted`.2, `wanted`.3, ... that does not exist: names for what is moved aside.
std::string free_name(Env& env, const std::string& wanted);

struct CommitJob {
  std::string attempt_dir;  // where the shards and parts are
  std::string final_dir;
  Commit commit;  // manifest filled in by commit_attempt
  Description description;
  int writers = 1;          // parts expected: rank-00000.part ...
  double deadline_s = 120;  // for the parts to arrive
  /// Asked again just before each rename or removal; false means another generation took over: Error(busy).
  std::function<bool()> still_mine = [] { return true; };
  /// What an existing final_dir is renamed to; empty: an existing one is Error(exists).
  std::string supersede_suffix;
  /// Called with the assembled manifest before anything of it is written; what it throws ends the attempt.
  /// May be empty.
  std::function<void(const Manifest&)> before_commit;
};

/// Where the time of a commit went.
struct CommitStats {
  double parts_wait_s = 0;  // until all parts were there
};

/// Waits for all parts (back-off 10 ms to 1 s), compares the replicas that they tell of (Error(damaged) names
/// the first that differs), joins them, writes the manifest, unlinks the parts, writes
/// COMMIT, renames the directory (the commit point) and fsyncs the parent. Fault points manifest.write,
/// commit.write, commit.rename, dir.rename. A part with an error, or one that does not come, is Error(peer |
/// deadline) naming the rank. `cancel` (may be null) ends the wait; `stats` (may be null) is filled. Returns
/// the manifest.
Manifest commit_attempt(Env& env, const CommitJob& job, const std::atomic<bool>* cancel = nullptr,
                        CommitStats* stats = nullptr);

}  // namespace shardwright::ckpt
