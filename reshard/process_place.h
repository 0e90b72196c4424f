// Which of several processes at one reshard this is, and how long they wait for each other.
#pragma once

namespace shardwright::reshard {

/// Which of how many processes this one is.
struct ProcessPlace {
  int rank = 0;
  int count = 1;
};

/// As mpirun (OMPI_COMM_WORLD_RANK and _SIZE), mpiexec (PMI_RANK and PMI_SIZE) or srun (SLURM_PROCID with
/// SLURM_STEP_NUM_TASKS) say it; without them the only one. Error(usage) names a variable that makes no
/// sense.
ProcessPlace place_from_environment();

/// In seconds.
struct ProcessTimes {
  double start_s = 120;     // for all processes to arrive
  double progress_s = 300;  // without any of another process that lives: it hangs
  double leave_s = 10;      // for the others to go, at the end
};

}  // namespace shardwright::reshard
