// How a process learns from its environment that it is a rank, and what its supervisor, if it has one, tells
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardwright::trainer {

// Variables that the supervisor sets for its workers.
inline constexpr const char* kRunVariable = "SHARDWRIGHT_RUN";
inline constexpr const char* kGenerationVariable = "SHARDWRIGHT_GENERATION";
inline constexpr const char* kCallGenerationVariable = "SHARDWRIGHT_CALL_GENERATION";  // for fault points
inline constexpr const char* kHeartbeatVariable = "SHARDWRIGHT_HEARTBEAT";

/// What a supervised worker is told. The supervisor holds the run lock, has begun the generation, and writes
/// the events run_start, generation_start, rank_lost, generation_end, preempted, done and given_up; a worker
/// without one does all that itself.
struct Supervised {
  std::string run;  // uuid
  std::uint64_t generation = 0;
  std::string heartbeat_address;  // ProgressOptions::heartbeat_address
};

/// Nothing for a process without a supervisor; Error(usage) if the variables are there in part or are not
/// numbers.
std::optional<Supervised> supervised();

/// Number of this rank by the launcher's variables, before MPI starts; 0 without a launcher.
int launcher_rank();

/// "<run_dir>/logs/gen-0003/rank-00002.log"
std::string log_path(const std::string& run_dir, std::uint64_t generation, int rank);

/// Sends what this supervised worker writes to standard error to its log (appended; directories are made), so
/// that only the supervisor speaks to the user. Standard output of rank 0, its progress lines, still goes to
/// the user; the others' goes to their logs. Also has the kernel end this process when its launcher dies.
/// Called first of all by the main thread. Error(io) names the path.
void redirect_to_log(const std::string& run_dir, std::uint64_t generation, int rank);

}  // namespace shardwright::trainer
