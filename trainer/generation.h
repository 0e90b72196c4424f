// One generation of a supervised run: the ranks from their start until none of them is left.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/heartbeat_listener.h"
#include "trainer/mpirun_process.h"
#include "trainer/recovery.h"
#include "trainer/stop_requests.h"

namespace shardwright::trainer {

struct GenerationOptions {
  MpirunOptions mpirun;
  std::uint64_t generation = 0;
  double heartbeat_s = 10;
  double start_deadline_s = 300;
  std::string mark;  // "NAME=value" in the environment of all that mpirun starts, and of nothing else
};

struct GenerationEnd {
  Observed observed;
  std::int64_t steps = 0;  // of the run, finished by any rank
  double seconds = 0;
};

/// Starts the ranks, passes their output on and a first stop signal down (as SIGUSR1, once each rank
/// can take it), and watches. Ends everything that was started when the ranks are through, when the
/// generation cannot go on, or at a second signal; when it returns, no process of it is left. Error(deadline)
/// if one cannot be killed.
GenerationEnd run_generation(const GenerationOptions& options, HeartbeatListener& listener,
                             StopRequests& stops);

}  // namespace shardwright::trainer
