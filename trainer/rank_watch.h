// What the supervisor knows of each rank of a generation, from its heartbeats and from the kernel's word that
// it has ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/heartbeat.h"

namespace shardwright::trainer {

using WatchClock = std::chrono::steady_clock;

struct RankState {
  bool heard = false;
  int pid = 0;
  WatchClock::time_point last_heard;
  std::string phase;
  double deadline_s = 0;
  std::uint64_t progress = 0;
  WatchClock::time_point progress_since;
  std::int64_t step = 0;
  std::optional<Heartbeat> failure;  // Kind::fail
  int failure_order = 0;             // which of all failures of the generation this was, from 1
  std::optional<int> finished;       // status of Kind::finish
  int end_order = 0;                 // which of all ends of the generation this was, from 1; 0: still runs
  bool silent = false;               // no heartbeat for too long
  bool stopped = false;              // not running (SIGSTOP) while another hangs
  bool stuck = false;  // heartbeats go on, but no progress within the phase's deadline and a margin

  bool ended() const { return end_order > 0; }
};

struct WatchOptions {
  int ranks = 1;
  std::uint64_t generation = 0;
  double heartbeat_s = 10;
  double start_deadline_s = 300;            // for the first heartbeat of each rank
  std::function<bool(int pid)> is_stopped;  // of a process
};

/// The time is an argument everywhere. Not thread-safe.
class RankWatch {
 public:
  RankWatch(WatchOptions options, WatchClock::time_point now);

  /// Takes a message in; those of other generations or of ranks that do not exist are dropped. True if it is
  /// the rank's first.
  bool hear(const Heartbeat& message, WatchClock::time_point now);
  /// The kernel says that the rank's process has ended.
  void end(int rank);
  /// Looks at the clock: sets `silent` and `stuck`. To be called regularly, after all messages that have come
  /// were heard; if this process itself did not run for a while, nobody's silence counts.
  void tick(WatchClock::time_point now);

  const std::vector<RankState>& ranks() const { return ranks_; }
  bool all_heard() const;
  bool all_ended() const;
  /// True once the generation cannot go on: a rank failed, ended without having finished, is silent or stuck,
  /// or never came.
  bool trouble() const;
  /// Some rank sent no heartbeat at all within the start deadline.
  bool never_came() const { return never_came_; }
  /// Steps of the run finished by any rank.
  std::int64_t steps() const;

 private:
  WatchOptions options_;
  std::vector<RankState> ranks_;
  WatchClock::time_point began_;
  WatchClock::time_point last_tick_;
  bool never_came_ = false;
  int ends_ = 0;
  int failures_ = 0;
};

}  // namespace shardwright::trainer
