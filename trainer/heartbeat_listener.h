// The supervisor's end of the heartbeats.
#pragma once

#include <string>
#include <vector>

#include "trainer/heartbeat.h"

namespace shardwright::trainer {

/// Not thread-safe.
class HeartbeatListener {
 public:
  /// Binds a socket under a fresh name. Error(io) if the system refuses.
  HeartbeatListener();
  ~HeartbeatListener();
  HeartbeatListener(const HeartbeatListener&) = delete;
  HeartbeatListener& operator=(const HeartbeatListener&) = delete;

  /// What HeartbeatSender takes.
  const std::string& address() const { return address_; }
  /// Readable when there is something to receive.
  int fd() const { return fd_; }
  /// All messages that have arrived, with their senders' process ids, without waiting. Those of other users
  /// are dropped.
  std::vector<Heartbeat> receive();

 private:
  std::string address_;
  int fd_ = -1;
};

}  // namespace shardwright::trainer
