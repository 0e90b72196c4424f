// SIGTERM, SIGINT, SIGUSR1 and SIGHUP to the supervisor, as something to poll instead of something that
// interrupts.
#pragma once

#include <signal.h>

#include <chrono>
#include <string>

namespace shardwright::trainer {

/// Blocks these signals in the calling thread while it lives. Made before other threads are. A SIGHUP that is
/// ignored (nohup) stays so. Also ignores SIGPIPE, so that a run does not end because nobody reads its
/// output.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Readable when a signal has come.
  int fd() const { return fd_; }
  /// How many have come so far. Those within half a second of the first are it once more: timeout(1) and
  /// service managers signal a process and then its whole group.
  int count();
  /// Name of the first, as "SIGTERM".
  std::string first() const;

 private:
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  int fd_ = -1;
  int count_ = 0;
  int first_ = 0;
  std::chrono::steady_clock::time_point first_at_;
};

}  // namespace shardwright::trainer
