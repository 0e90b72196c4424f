#include "trainer/train.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "reshard/layout.h"

namespace shardwright::cli {
namespace {

std::string keys_help() {
  std::string text = "Keys of the configuration and of --set, with their defaults, and [what they may be]:";
  for (const trainer::KeyInfo& key : trainer::config_keys())
    text += fmt::format("\n  {:<32}{:<12} {}{}", key.key, key.fallback, key.meaning,
                        key.allowed.empty() ? "" : " [" + key.allowed + "]");
  return text;
}

}  // namespace

int train(const Arguments& arguments) {
  trainer::TrainOptions options;
  std::vector<std::string> sets;
  std::optional<std::string> resume, plan, trace;
  std::optional<std::int64_t> nproc, stop_after;
  bool list_fault_points = false;

  Options flags("train",
                "Trains a model in parallel, with checkpoints, and goes on by itself when a rank is lost.",
                "shardwright train run.toml --nproc 4 --set parallel.tp=2 --set optim.lr=3e-4");
  flags.optional_positional("CONFIG", options.config_file, "configuration file (TOML)");
  flags.integer("--nproc", "N", 1, nproc, "ranks to start here (default: what the layout asks for)",
                reshard::kMaxRanks);
  flags.texts("--set", "KEY=VALUE", sets, "replace a key of the configuration; may be repeated");
  flags.text("--resume", "auto|must|never|PATH", resume,
             "auto: newest valid checkpoint, or start fresh; must: newest valid checkpoint; never: start "
             "fresh; or the path "
             "of a checkpoint or a run");
  flags.text("--plan", "auto", plan,
             "auto: train in the layout that is fastest by estimate and fits this machine, whatever "
             "[parallel] says");
  flags.integer("--stop-after", "K", 0, stop_after, "end after step K (a total) with a checkpoint");
  flags.text("--trace", "FILE", trace,
             "write what each rank's threads did when, for Perfetto or chrome://tracing; replaces FILE");
  flags.flag("--accept-changes", options.accept_changes, "resume although data, seed or global batch differ");
  flags.flag("--list-fault-points", list_fault_points, "names that SHARDWRIGHT_FAULT understands");
  flags.footer(keys_help());
  if (!flags.parse(arguments)) return 0;

  if (list_fault_points) {
    std::string text;
    for (const std::string& point : ckpt::fault_point_names()) text += point + "\n";
    print(text);
    return 0;
  }
  if (options.config_file.empty())
    throw Error(ErrorCode::usage,
                "train: CONFIG is missing; give a configuration file, as shardwright train run.toml");
  for (const std::string& set : sets) options.overrides.push_back(trainer::parse_override(set));
  if (resume == "must") {
    options.resume = trainer::Resume::must;
  } else if (resume == "never") {
    options.resume = trainer::Resume::never;
  } else if (resume == "") {
    throw Error(ErrorCode::usage, "--resume: is empty; give auto, must, never, a checkpoint or a run");
  } else if (resume && *resume != "auto") {
    options.resume = trainer::Resume::path;
    options.resume_path = *resume;
  }
  if (plan && *plan != "auto")
    throw Error(ErrorCode::usage, fmt::format("--plan: '{}' is not known; auto is what there is", *plan));
  options.plan = plan.has_value();
  if (trace == "") throw Error(ErrorCode::usage, "--trace: is empty; give the name of a file");
  options.trace = trace.value_or("");
  if (nproc) options.nproc = static_cast<int>(*nproc);
  options.stop_after = stop_after;
  if (options.plan && trainer::is_worker())
    throw Error(ErrorCode::usage,
                "--plan: one process chooses for all ranks; start it with --nproc N instead of a launcher");
  return trainer::is_worker() ? trainer::run_worker(options) : trainer::run_supervisor(options);
}

}  // namespace shardwright::cli
