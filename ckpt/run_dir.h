// Who owns a run: the lock, the generation, and what is tidied when a generation starts (FORMAT.md,
// "Generations").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/env.h"

namespace shardwright::ckpt {

/// Locks `directory`/run.lock for as long as it lives, in a directory that is made where it is new.
/// Error(busy) if another process has it.
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

/// Reads GENERATION in `run_dir`; Error(missing) in a run that never started, Error(damaged) if it is torn or
/// changed.
Generation read_generation(Env& env, const std::string& run_dir);

/// The highest generation that a run's other records name, if any does; asked for only where GENERATION is
/// lost.
using RecordedGeneration = std::function<std::optional<std::uint64_t>()>;

/// Starts the next generation; the caller holds the run lock. In this order: reads GENERATION (g) and
/// replaces it by g+1 (0 in a new run); promotes a `.tmp-g-*` with a complete COMMIT of generation g (an
/// existing final name is superseded first); renames every other `.tmp-` to `.trash-` and unlinks all
/// `.trash-`. Scan only after this. Where GENERATION is missing or damaged, g is the highest generation named
/// by any COMMIT or directory of the checkpoints directory or by `recorded`, and the run is that of the
/// newest COMMIT: nothing that an older generation left may outrank what comes now.
struct Started {
  Generation generation;
  std::string recovered;              // says so, if GENERATION was lost; for people
  std::vector<std::string> promoted;  // paths
  std::vector<std::string> removed;
};
Started begin_generation(Env& env, const std::string& run_dir, const std::string& checkpoints_dir,
                         const RecordedGeneration& recorded = {});

/// Renames every checkpoint newer than `step` (all of them when `all`) to `.superseded-<generation>`, fsyncs
/// the parent and returns the new paths.
std::vector<std::string> supersede_newer(Env& env, const std::string& checkpoints_dir, std::uint64_t step,
                                         bool all, const Generation& generation);

}  // namespace shardwright::ckpt
