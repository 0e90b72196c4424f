// Processes found by what their environment says: the one thing that a rank keeps, whatever process group or
// parent it gets.
#pragma once

#include <string>
#include <vector>

namespace shardwright::trainer {

/// Live processes of this user (zombies and this process left out) whose environment has exactly this
/// "NAME=value".
std::vector<int> processes_marked(const std::string& entry);

/// SIGKILLs them until none is left; a stopped process dies too. Reaps those that became children of this
/// process. Error(deadline) names the processes that are still there after `seconds`.
void end_processes_marked(const std::string& entry, double seconds);

/// True if the process is stopped by a signal or a tracer.
bool is_stopped(int pid);

}  // namespace shardwright::trainer
