// What a worker is doing, for whoever watches it: the current phase, its deadline, and a counter that the
// main thread moves. One background thread ends the process (status 70) when a phase outlasts its deadline or
// the supervisor is gone, and tells the supervisor twice a second that the rank lives. It depends on nothing
// but the clock: MPI may hang.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ckpt/error.h"

namespace shardwright::trainer {

enum class Phase : std::uint8_t { start, load, step, save_wait, eval, exit };
const char* name(Phase phase);

/// Exit status of a worker that the watchdog ends.
inline constexpr int kWatchdogStatus = 70;

struct ProgressOptions {
  int rank = 0;
  std::uint64_t generation = 0;
  double phase_deadline_s = 120;   // of each phase; start and load have at least 300
  double commit_deadline_s = 120;  // of a checkpoint: save_wait has at least 30 s more
  double heartbeat_s = 10;         // how long the supervisor may be unreachable
  std::string heartbeat_address;   // where the supervisor listens; empty: none
};

/// One per worker process, made first of all: before MPI starts, and after the handlers of the stop
/// signals are in place (from its first heartbeat on, a rank may be sent SIGUSR1). enter() and advance()
/// are cheap; all are called by the main thread.
class Progress {
 public:
  /// Begins in Phase::start.
  explicit Progress(ProgressOptions options);
  /// Ends the thread. Does not say anything to the supervisor: finish() or fail() does.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Starts a phase and its deadline.
  void enter(Phase phase);
  /// Something got done within the phase: its deadline starts anew.
  void advance();
  /// As advance(), and the supervisor learns that this many optimizer steps of the run are finished.
  void step_done(std::int64_t step);

  /// Tells the supervisor, before this process leaves, why it fails. The supervisor prints this one error for
  /// the whole run, so the worker itself writes it only to its log. `cause` as in the event rank_lost: "exit"
  /// for an error in general, "nonfinite", "host" for what this machine refused (I/O, memory). The first call
  /// counts.
  void fail(const Error& error, const std::string& cause = "exit");
  /// Tells the supervisor the status (0, 1, 75) with which this process leaves after agreeing on it with all
  /// others.
  void finish(int status);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::trainer
