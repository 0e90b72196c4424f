// What the command line's RUN_OR_DIR means.
#pragma once

#include <string>

namespace shardwright::cli {

/// The checkpoints directory of a run directory, or `path` itself. Error(missing) if it is no directory,
/// Error(usage) if it is a checkpoint, which holds none.
std::string checkpoints_dir_of(const std::string& path);

/// Whether a directory that may hold no checkpoint is a run all the same: one that has saved nothing yet.
bool is_run(const std::string& path);

}  // namespace shardwright::cli
