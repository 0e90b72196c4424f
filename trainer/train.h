// Training: what one rank does (worker) and what `shardwright train --nproc N` is (supervisor).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config.h"

namespace shardwright::trainer {

enum class Resume : std::uint8_t { automatic, must, never, path };

struct TrainOptions {
  std::string config_file;
  std::vector<Override> overrides;
  Resume resume = Resume::automatic;
  std::string resume_path;                 // for Resume::path
  std::optional<std::int64_t> stop_after;  // a total of steps
  std::optional<int> nproc;
  std::string trace;  // file to write one to (run_trace.h); empty: none
  bool accept_changes = false;
  bool plan = false;  // take the layout that the planner finds best (run_supervisor)
};

/// True if the environment says that this process is a rank of a launcher: OMPI_COMM_WORLD_SIZE, or
/// SLURM_STEP_ID with PMIX_RANK, or RANK with WORLD_SIZE (refused on the CPU with one clear line).
bool is_worker();

/// One rank. Returns the exit status (0, 1, 75); throws Error for what is asked wrongly before anything was
/// done.
int run_worker(const TrainOptions& options);

/// Starts `mpirun` with this binary as workers, watches them, and goes on with what remains after a failure.
/// Returns the exit status.
int run_supervisor(const TrainOptions& options);

}  // namespace shardwright::trainer
