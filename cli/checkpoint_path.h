// What the command line's RUN_OR_DIR means.
#pragma once

#include <string>

namespace shardwright::cli {

/// The checkpoints directory of a run directory, or `path` itself. Error(missing) if it is no directory.
std::string checkpoints_dir_of(const std::string& path);

}  // namespace shardwright::cli
