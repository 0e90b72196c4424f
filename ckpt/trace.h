// What each thread was doing when, for people: spans of time in the trace format of Chrome and Perfetto.
//
// A process records while it has a Session. A span costs one relaxed load without one; with one, two readings
// of the clock and a write to the thread's own ring, never a lock or a wait. A thread of the session writes
// what the rings hold to a file of this process, a part, twenty times a second, so what a killed process
// leaves is whole but for its last moments. merge_parts() makes one file of several processes' parts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardwright::trace {

/// Spans of one thread that may wait to be written; what comes while there is no room is dropped and counted.
inline constexpr std::size_t kWaitingSpans = 8192;
/// Threads alive at once that are recorded; spans of further ones are dropped and counted.
inline constexpr std::size_t kThreads = 128;

namespace detail {
extern std::atomic<bool> recording;
}

/// From its construction to its end, in the row of the calling thread. Spans of a thread nest. `name` and
/// `key` (of one number beside the name, may be null) are literals: only the pointers are kept.
class Span {
 public:
  explicit Span(const char* name, const char* key = nullptr, std::int64_t value = 0) {
    if (detail::recording.load(std::memory_order_relaxed)) begin(name, key, value);
  }
  ~Span() {
    if (name_ != nullptr) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(const char* name, const char* key, std::int64_t value);
  void end() noexcept;

  const char* name_ = nullptr;  // null: nothing is recorded
  const char* key_ = nullptr;
  std::int64_t value_ = 0;
  std::int64_t start_ns_ = 0;
};

/// Names the calling thread's row, a literal; before its first span. Threads that come one after another
/// under one name share rows.
void name_thread(const char* name);

/// Microseconds of the system's clock since 1970: what processes can agree on.
std::int64_t now_us();

struct SessionOptions {
  std::string part;  // file of this process, replaced
  int process = 0;   // number of its rows
  std::string process_name;
  std::int64_t zero_us = 0;  // by the system's clock: where the time line starts, the same for all processes
};

struct Summary {
  std::uint64_t spans = 0;    // written
  std::uint64_t dropped = 0;  // for want of room
  std::string error;          // why the file ends early; empty if it does not
};

/// Records from construction on; one at a time in a process. Its calls are made by one thread.
class Session {
 public:
  /// Error(io) if the part cannot be made.
  explicit Session(const SessionOptions& options);
  /// stop(), unheard.
  ~Session();
  /// Writes what is there and ends. Spans that have not ended are not in the file.
  Summary stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Joins parts to one JSON object at `path` (replaced as a whole), without what a killed process left of a
/// last line, and removes them. Error(io) names the file.
void merge_parts(const std::vector<std::string>& parts, const std::string& path);

}  // namespace shardwright::trace
