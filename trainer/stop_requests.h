// SIGTERM, SIGINT and SIGUSR1 to the supervisor, as something to poll instead of something that interrupts.
#pragma once

#include <signal.h>

namespace shardwright::trainer {

/// Blocks these signals in the calling thread while it lives. Made before other threads are. Also ignores
/// SIGPIPE, so that a run does not end because nobody reads its output.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  /// Readable when a signal has come.
  int fd() const { return fd_; }
  /// How many have come so far.
  int count();
  /// Name of the first, as "SIGTERM".
  const char* first() const {
    return first_ == SIGINT ? "SIGINT" : first_ == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
  }

 private:
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  int fd_ = -1;
  int count_ = 0;
  int first_ = 0;
};

}  // namespace shardwright::trainer
