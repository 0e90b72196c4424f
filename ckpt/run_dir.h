// Who owns a run: the lock, the generation, and what is tidied when a generation starts (FORMAT.md,
// "Generations").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/env.h"

namespace shardwright::ckpt {

/// Locks `directory`/run.lock for as long as it lives. Error(busy) if another process has it.
class RunLock {
 public:
  RunLock(Env& env, const std::string& directory);

 private:
  std::unique_ptr<FileLock> lock_;
};

struct Generation {
  std::string run;  // uuid, made with the first generation
  std::uint64_t number = 0;
};

/// Reads GENERATION in `run_dir`; Error(missing) in a run that never started.
Generation read_generation(Env& env, const std::string& run_dir);

/// Starts the next generation; the caller holds the run lock. In this order: reads GENERATION (g) and
/// replaces it by g+1 (0 if there was none); promotes a `.tmp-g-*` with a complete COMMIT of generation g (an
/// existing final name is superseded first); renames every other `.tmp-` to `.trash-` and unlinks all
/// `.trash-`. Scan only after this.
struct Started {
  Generation generation;
  std::vector<std::string> promoted;  // paths
  std::vector<std::string> removed;
};
Started begin_generation(Env& env, const std::string& run_dir, const std::string& checkpoints_dir);

/// Renames every checkpoint newer than `step` (all of them when `all`) to `.superseded-<generation>`, fsyncs
/// the parent and returns the new paths.
std::vector<std::string> supersede_newer(Env& env, const std::string& checkpoints_dir, std::uint64_t step,
                                         bool all, const Generation& generation);

}  // namespace shardwright::ckpt
