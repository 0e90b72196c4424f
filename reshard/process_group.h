// Processes that work at one reshard together, told apart by rank. They never call each other: each says what
// it does in files of one directory, and holds a lock there while it lives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/error.h"
#include "ckpt/shard.h"
#include "reshard/process_place.h"

namespace shardwright::reshard {

/// What a process did, for the report.
struct ProcessWork {
  std::uint64_t read_bytes = 0;
  std::uint64_t chunks_read = 0;
  std::uint64_t chunks_passed_through = 0;
  std::uint64_t chunks_recoded = 0;
  std::uint64_t peak_rss_bytes = 0;
};

/// A group of one does nothing. Process 0 leads: gather(), begin(), collect(), end(); the others follow(),
/// deliver(), await_end(). From gather() and follow() on a thread watches the others. Who cannot go on throws
/// what the process at fault failed of: Error(peer) if that died, Error(deadline) if it hangs or does not
/// come. Not thread-safe but for count(), counted() and signals().
class ProcessGroup {
 public:
  /// Takes this process's lock in `directory`, which is made. Error(busy) if another process has it.
  ProcessGroup(ckpt::Env& env, std::string directory, ProcessPlace place, ProcessTimes times = {});
  /// Stops watching and gives the lock back.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  bool leads() const;

  /// Of the leader: waits until all have come.
  void gather();
  /// Of the leader: the others may work.
  void begin();
  /// Of the others: waits for begin().
  void follow();

  /// This process has done so many bytes of work: a sign of life.
  void count(std::uint64_t bytes);
  /// Bytes done by this process; of the leader, by all as far as they have told.
  std::uint64_t counted() const;
  /// Cancelled once another process has failed.
  const ckpt::SaveSignals& signals() const;
  /// Throws what another process failed of, if one did.
  void rethrow_failure() const;
  /// Tells the others what this process failed of, as well as it can.
  void fail(const Error& error) noexcept;

  /// Of the others: tells the leader what was done.
  void deliver(const ProcessWork& work);
  /// Of the others: waits for the leader's end().
  void await_end();

  /// Of the leader: waits until all have delivered; what they did.
  std::vector<ProcessWork> collect();
  /// Of the leader: the target is committed. As after fail(), what is left to it is leave().
  void end();
  /// Of the leader: waits a little until the others have gone, does what is `last`, and removes the
  /// directory.
  void leave(const std::function<void()>& last);
  /// Of the others, after fail(): gives the lock back and waits a little until the leader has left. A
  /// launcher ends all processes once one of them has failed, and the leader has yet to clean up and to say
  /// why.
  void withdraw();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// True if a process that worked in `directory` still lives.
bool group_lives(ckpt::Env& env, const std::string& directory);

}  // namespace shardwright::reshard
