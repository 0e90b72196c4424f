#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "ckpt/error.h"
#include "ckpt/retention.h"
#include "ckpt/run_dir.h"
#include "ckpt/scan.h"
#include "ckpt/verify.h"
#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"

namespace shardwright::cli {

namespace {

/// Refuses what holds no checkpoints: a lock taken there would be a file too many.
void check_holds_checkpoints(ckpt::Env& env, const std::string& path, const std::string& directory) {
  if (!is_run(path) && ckpt::scan(env, directory).empty())
    throw Error(ErrorCode::missing,
                path +
                    ": holds no checkpoint (no directory named step-NNNNNNNNNN), and is no run; give a run "
                    "or its checkpoints directory",
                path);
}

/// Reads all of a checkpoint. A file too many takes nothing from it.
bool has_all_values(ckpt::Env& env, const std::string& path) {
  ProgressBar bar("prune");
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const ckpt::VerifyReport report = ckpt::verify(
      env, path, threads, [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); });
  return std::ranges::all_of(report.problems, [](const ckpt::Problem& p) { return p.code == "path"; });
}

}  // namespace

int prune(const Arguments& arguments) {
  std::string path;
  std::optional<std::int64_t> keep;
  bool dry_run = false, json = false;
  Options flags("prune",
                "Removes all but the newest valid checkpoints, and those that a later start superseded. "
                "Reads every byte of those it keeps before it removes any other: damaged ones neither count "
                "nor go.",
                "shardwright prune runs/demo --keep 3");
  flags.positional("RUN_OR_DIR", path, "a run or a checkpoints directory");
  flags.integer("--keep", "K", 1, keep, "valid checkpoints kept");
  flags.flag("--dry-run", dry_run, "say what would be removed, remove nothing");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;
  if (!keep)
    throw Error(ErrorCode::usage, "--keep: is missing; give the number of checkpoints to keep, from 1");

  ckpt::Env& env = ckpt::posix_env();
  ckpt::RetentionJob job;
  job.checkpoints_dir = checkpoints_dir_of(path);
  check_holds_checkpoints(env, path, job.checkpoints_dir);
  job.keep = static_cast<int>(std::min<std::int64_t>(*keep, 1 << 30));
  job.attempt = "prune";
  job.superseded = true;
  job.dry_run = dry_run;
  std::set<std::string> damaged;
  std::size_t whole = 0;
  job.is_whole = [&](const std::string& checkpoint) {
    const bool all = has_all_values(env, checkpoint);
    if (all) ++whole;
    if (!all) damaged.insert(checkpoint);
    return all;
  };
  // A running training holds both locks. A dry run writes nothing, so it takes none.
  std::optional<ckpt::RunLock> run, checkpoints;
  if (!dry_run && job.checkpoints_dir != path) run.emplace(env, path);
  if (!dry_run) checkpoints.emplace(env, job.checkpoints_dir);
  const std::vector<std::string> surplus = ckpt::retire(env, job);
  std::vector<std::string> kept;
  for (const ckpt::ScanEntry& entry : ckpt::scan(env, job.checkpoints_dir))
    if (std::ranges::find(surplus, entry.path) == surplus.end()) kept.push_back(entry.path);
  if (whole == 0 && !kept.empty())
    throw Error(
        ErrorCode::damaged,
        fmt::format("{}: none of the {} checkpoints here is valid, so nothing is removed; `shardwright list` "
                    "says why each is not",
                    job.checkpoints_dir, kept.size()),
        job.checkpoints_dir);

  if (json) {
    nlohmann::ordered_json report = {{"kept", kept}, {"removed", surplus}};
    if (dry_run)
      report = {{"kept", kept}, {"removed", nlohmann::ordered_json::array()}, {"would_remove", surplus}};
    print_json(report);
  } else {
    std::string text;
    for (const std::string& name : surplus)
      text += fmt::format("{} {}\n", dry_run ? "would remove" : "removed", name);
    for (const std::string& name : kept)
      text += fmt::format("{} {}{}\n", dry_run ? "would keep  " : "kept   ", name,
                          damaged.contains(name) ? " (damaged: `shardwright verify` tells where)" : "");
    if (dry_run || surplus.empty()) text += "nothing was removed\n";
    print(text);
  }
  return 0;
}

}  // namespace shardwright::cli
