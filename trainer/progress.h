// What a worker is doing, for whoever watches it: the current phase, its deadline, and a counter that the main thread moves.
// The watchdog thread ends the process (status 70) when a phase outlasts its deadline; the heartbeat thread tells the supervisor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace shardwright::trainer {

enum class Phase : std::uint8_t { start, load, step, save_wait, eval, exit };
const char* name(Phase phase);

struct ProgressOptions {
  int rank = 0;
  std::uint64_t generation = 0;
  double phase_deadline_s = 120;     // of each phase; start and load have at least 300
  std::string heartbeat_address;     // where the supervisor listens; empty: none
};

/// One per worker process. enter() and advance() are cheap and called by the main thread.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();
  /// Starts a phase and its deadline.
  void enter(Phase phase);
  /// Something got done within the phase: its deadline starts anew.
  void advance();
  /// Error text for the supervisor's events (non-finite loss, host error), sent at once.
  void report(const std::string& cause, const std::string& detail);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::trainer
