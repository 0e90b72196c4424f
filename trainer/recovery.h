// How a generation ended, and how the run goes on: the decisions of the supervisor, as functions of what it
// has seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "reshard/layout.h"
#include "trainer/config.h"
#include "trainer/mpirun_process.h"
#include "trainer/rank_watch.h"

namespace shardwright::trainer {

enum class EndCause : std::uint8_t { done, preempted, exit, signal, hang, nonfinite, host, error };
/// As in events.jsonl.
const char* name(EndCause cause);

struct Verdict {
  EndCause cause = EndCause::done;
  int rank = -1;               // at fault; -1: none in particular
  std::string detail;          // for people: "signal 9"
  std::vector<int> lost;       // ranks whose slots are gone for the rest of the run
  std::optional<Error> error;  // what ends the run, where trying again cannot help
};

struct Observed {
  std::vector<RankState> ranks;
  bool never_came = false;
  std::optional<FirstDeath>
      first_death;                   // as mpirun tells it; nothing if the supervisor ended the ranks itself
  std::optional<int> mpirun_status;  // if mpirun ended by itself
  std::string mpirun_log;            // path, for messages
  double heartbeat_s = 10;
};

/// Rules, the first that fits: a rank finished with 0 or 75 (all had agreed) -> done, preempted; all agreed
/// on an error, or one that cannot be helped by trying again, or a non-finite number -> the run ends with
/// that error; a rank's own error -> its slot is lost; silent ranks -> their slots are lost; a rank that
/// ended without a word -> its slot is lost; ranks that hang but still send -> none is lost.
Verdict judge(const Observed& seen);

struct Plan {
  std::optional<reshard::Layout> layout;  // of the next generation; nothing: the run is given up
  int slots = 0;                          // ranks that may still be used
  std::string reason;                     // why it is given up
};

/// What follows a verdict without an error. `restarts` counts those already made, `slots` the ranks that
/// there were.
Plan plan_recovery(const Config& config, const reshard::ModelSpec& model, const reshard::Layout& layout,
                   const Verdict& verdict, int slots, int restarts);

}  // namespace shardwright::trainer
