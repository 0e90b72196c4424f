#include "cli/checkpoint_path.h"

#include <fmt/format.h>

#include "ckpt/checkpoint_name.h"
#include "ckpt/env.h"
#include "ckpt/error.h"

namespace shardwright::cli {

std::string checkpoints_dir_of(const std::string& path) {
  ckpt::Env& env = ckpt::posix_env();
  if (!env.is_dir(path))
    throw Error(ErrorCode::missing,
                fmt::format("{}: is no directory; give a run or a checkpoints directory", path), path);
  const std::string inside = path + "/checkpoints";
  if (env.is_dir(inside)) return inside;
  if (!is_run(path) && (env.exists(path + "/COMMIT") || env.exists(path + "/manifest.h5") ||
                        ckpt::parse_checkpoint_name(ckpt::base_name(path))))
    throw Error(ErrorCode::usage,
                fmt::format("{}: is a checkpoint; give the run or the directory that holds it, or ask "
                            "`shardwright inspect` about this one",
                            path),
                path);
  return path;
}

bool is_run(const std::string& path) {
  ckpt::Env& env = ckpt::posix_env();
  for (const char* trace : {"checkpoints", "GENERATION", "config.toml"})
    if (env.exists(path + "/" + trace)) return true;
  return false;
}

}  // namespace shardwright::cli
