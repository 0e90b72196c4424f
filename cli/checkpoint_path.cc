#include "cli/checkpoint_path.h"

#include <fmt/format.h>

#include "ckpt/env.h"
#include "ckpt/error.h"

namespace shardwright::cli {

std::string checkpoints_dir_of(const std::string& path) {
  ckpt::Env& env = ckpt::posix_env();
  if (!env.is_dir(path))
    throw Error(ErrorCode::missing,
                fmt::format("{}: is no directory; give a run or a checkpoints directory", path), path);
  const std::string inside = path + "/checkpoints";
  return env.is_dir(inside) ? inside : path;
}

}  // namespace shardwright::cli
