// The messages from a rank to its supervisor: datagrams on a Unix socket with an abstract name, so that
// nothing needs cleaning up and a sender notices at once that nobody listens any more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/error.h"

namespace shardwright::trainer {

struct Heartbeat {
  enum class Kind : std::uint8_t { beat, fail, finish };
  Kind kind = Kind::beat;
  int rank = 0;
  std::uint64_t generation = 0;
  std::string phase;
  std::uint64_t progress = 0;  // moved by the main thread
  std::int64_t step = 0;       // optimizer steps of the run finished
  double deadline_s = 0;       // of the phase
  // Kind::fail
  std::string cause;
  ErrorCode code = ErrorCode::peer;
  std::string message;
  std::string path;
  // Kind::finish
  int status = 0;
  // Filled in by the receiver from the kernel's credentials, never sent.
  int pid = 0;
};

/// A datagram's text, at most 16 KiB (a longer message is cut), and back; nothing for a text that is none.
std::string encode(const Heartbeat& heartbeat);
std::optional<Heartbeat> decode(const std::string& datagram);

/// The sending end. Thread-safe.
class HeartbeatSender {
 public:
  /// `address` as HeartbeatListener::address() gives it.
  explicit HeartbeatSender(const std::string& address);
  ~HeartbeatSender();
  HeartbeatSender(const HeartbeatSender&) = delete;
  HeartbeatSender& operator=(const HeartbeatSender&) = delete;

  enum class Result : std::uint8_t { sent, full, nobody };
  /// Never waits. `full`: the listener lives but has too much to read.
  Result send(const Heartbeat& heartbeat);
  /// Waits up to `seconds` while the listener's queue is full.
  Result send_surely(const Heartbeat& heartbeat, double seconds);

 private:
  int fd_ = -1;
};

}  // namespace shardwright::trainer
