// What a training finds on this machine, and what would go wrong with it: `shardwright doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config.h"

namespace shardwright::trainer {

/// warning: a training runs, but slower than it could or with less safety. error: it would fail.
enum class Concern : std::uint8_t { none, warning, error };

struct Finding {
  std::string subject;  // "shared memory"
  std::string found;    // one line
  Concern concern = Concern::none;
  std::string advice;  // what goes wrong and what helps; only with a concern
};

/// Cores, memory, limits of processes and shared memory, for so many ranks here.
std::vector<Finding> examine_machine(int ranks);

/// MPI and its launcher, the libraries of checkpoints, the GPU's driver and NCCL. Starts `mpirun --version`,
/// which gets ten seconds.
std::vector<Finding> examine_libraries();

/// The path itself, or what is nearest above it and there.
std::string nearest_directory(const std::string& path);

/// The file system of a directory, or of the one that it would be made in: kind, space, and whether what a
/// commit needs works there (a file written, made durable, renamed and locked, in a directory that is removed
/// again).
std::vector<Finding> examine_storage(const std::string& directory);

/// Memory and disk that a run needs in a legal layout.
std::vector<Finding> examine_run(const Config& config, const reshard::ModelSpec& model,
                                 const reshard::Layout& layout);

}  // namespace shardwright::trainer
