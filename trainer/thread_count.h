// Threads of a rank.
#pragma once

namespace shardwright::trainer {

/// What OMP_NUM_THREADS asks for; 0 if it asks for nothing. Error(usage) for more than 1024, which would take
/// the machine with them.
int threads_asked();

/// Cores that this process may run on.
int cores_of_process();

/// What was asked for, or the cores of this process shared out over the ranks of its host.
int threads_per_rank(int local_ranks);

}  // namespace shardwright::trainer
