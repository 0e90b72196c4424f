#include "ckpt/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/checkpoint_name.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/scan.h"

namespace shardwright::ckpt {
namespace {

std::string normal(const std::string& path) {
  return std::filesystem::absolute(std::filesystem::path(path + "/").parent_path())
      .lexically_normal()
      .string();
}

/// Valid ones beyond the newest `keep`, by step; superseded ones if they are asked for. A damaged one is
/// neither counted nor removed: its reason may pass (a mount, a permission), and a person may still save
/// something of it.
std::vector<CheckpointName> surplus(Env& env, const RetentionJob& job) {
  std::vector<CheckpointName> committed, chosen;
  for (const std::string& entry : env.list(job.checkpoints_dir)) {
    const auto name = parse_checkpoint_name(entry);
    if (!name) continue;
    if (name->state == NameState::committed) committed.push_back(*name);
    if (name->state == NameState::superseded && job.superseded) chosen.push_back(*name);
  }
  std::sort(committed.begin(), committed.end(),
            [](const CheckpointName& a, const CheckpointName& b) { return a.step > b.step; });
  int valid = 0;
  for (const CheckpointName& name : committed) {
    const std::string path = job.checkpoints_dir + "/" + name.text;
    try {
      check_structure(env, path);
    } catch (const Error&) {
      continue;
    }
    if (valid < job.keep && job.is_whole && !job.is_whole(path)) continue;
    if (++valid > job.keep) chosen.push_back(name);
  }
  if (valid == 0) return {};  // what was superseded may be all that is left
  if (!job.spare.empty())
    std::erase_if(chosen, [&](const CheckpointName& name) {
      return normal(job.checkpoints_dir + "/" + name.text) == normal(job.spare);
    });
  return chosen;
}

}  // namespace

std::vector<std::string> retire(Env& env, const RetentionJob& job) {
  if (job.keep < 1)
    throw Error(ErrorCode::usage,
                fmt::format("keep: {} would leave no checkpoint; 1 or more is right", job.keep));
  std::vector<std::string> removed, trash;
  for (const CheckpointName& name : surplus(env, job)) {
    const std::string from = job.checkpoints_dir + "/" + name.text;
    if (job.dry_run) {
      removed.push_back(from);
      continue;
    }
    fault_point("retire", 0, name.step);
    if (!job.still_mine())
      throw Error(ErrorCode::busy,
                  from + ": another generation of this run took over; nothing more is removed", from);
    trash.push_back(free_name(
        env, fmt::format("{}/{}.trash-{}", job.checkpoints_dir, step_dir_name(name.step), job.attempt)));
    env.rename(from, trash.back());
    removed.push_back(from);
  }
  if (trash.empty()) return removed;
  // Renamed for good before the first file goes: a crash can leave whole checkpoints or trash, nothing
  // between.
  env.sync_dir(job.checkpoints_dir);
  for (const std::string& path : trash) {
    if (!job.still_mine())
      throw Error(ErrorCode::busy,
                  path + ": another generation of this run took over; it removes this itself", path);
    remove_checkpoint_dir(env, path);
  }
  return removed;
}

}  // namespace shardwright::ckpt
