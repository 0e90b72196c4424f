#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/retention.h"
#include "ckpt/run_dir.h"
#include "ckpt/scan.h"
#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"

namespace shardwright::cli {

int prune(const Arguments& arguments) {
  std::string path;
  std::optional<std::int64_t> keep;
  bool json = false;
  Options flags("prune",
                "Removes all but the newest valid checkpoints, and those that a later start superseded. "
                "Never the last valid "
                "one.",
                "shardwright prune runs/demo --keep 3");
  flags.positional("RUN_OR_DIR", path, "a run or a checkpoints directory");
  flags.integer("--keep", "K", 1, keep, "valid checkpoints kept");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;
  if (!keep)
    throw Error(ErrorCode::usage, "--keep: is missing; give the number of checkpoints to keep, from 1");

  ckpt::Env& env = ckpt::posix_env();
  ckpt::RetentionJob job;
  job.checkpoints_dir = checkpoints_dir_of(path);
  job.keep = static_cast<int>(std::min<std::int64_t>(*keep, 1 << 30));
  job.attempt = "prune";
  job.superseded = true;
  // A running training holds both locks.
  std::optional<ckpt::RunLock> run;
  if (job.checkpoints_dir != path) run.emplace(env, path);
  const ckpt::RunLock checkpoints(env, job.checkpoints_dir);
  const std::vector<std::string> removed = ckpt::retire(env, job);
  std::vector<std::string> kept;
  for (const ckpt::ScanEntry& entry : ckpt::scan(env, job.checkpoints_dir)) kept.push_back(entry.path);

  if (json) {
    print_json({{"kept", kept}, {"removed", removed}});
  } else {
    std::string text;
    for (const std::string& name : removed) text += fmt::format("removed {}\n", name);
    for (const std::string& name : kept) text += fmt::format("kept    {}\n", name);
    print(text);
  }
  return 0;
}

}  // namespace shardwright::cli
