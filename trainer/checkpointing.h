// The training loop's side of saving: due saves, what all ranks agree on (is anyone busy, what came of the
// last save), and the end of failed attempts. The agreement travels in words of an all-reduce that happens
// anyway.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/saver.h"
#include "trainer/communicator.h"
#include "trainer/config.h"
#include "trainer/progress.h"

namespace shardwright::trainer {

/// What came of the saves of a call, and how often training stood still for one before it could begin the
/// next.
struct SaveCounts {
  std::int64_t committed = 0, failed = 0, skipped = 0;  // rank 0's; 0 on others
  std::int64_t waits = 0;                               // saves that were due while another was in work
  double wait_ms = 0;                                   // in all of these
};

class Checkpointing {
 public:
  /// Words that it adds to a sum over all ranks.
  static constexpr std::size_t kWords = 4;

  /// `on_outcome` hears on rank 0 of each save once, from the calling thread; it must not throw.
  Checkpointing(ckpt::Env& env, ckpt::SaverOptions options, const Config::CheckpointSection& section,
                Communicator& world, Progress& progress,
                std::function<void(const ckpt::SaveOutcome&)> on_outcome);

  /// This rank's words, before they are summed over all ranks, and the sums, on every rank.
  void put_words(std::span<double> words);
  void take_words(std::span<const double> sums);

  /// A save is due after `step`: makes it, or skips it if a rank was still busy at the last words and the
  /// policy is so. `must`: the last one, never skipped. Collective.
  void due(std::int64_t step, std::vector<ckpt::SaveItem> items, std::vector<ckpt::SaveItem> replicas,
           ckpt::Description description, bool must);
  /// Waits until no rank is busy and what came of each save is known to all. Collective; Error(deadline).
  void settle();
  /// Before a box of saved state changes.
  void before_write(const std::string& tensor, const std::string& kind, const ckpt::Box& box);

  /// After settle(): why the last save made is not valid; empty if it is, or if there was none. Ranks other
  /// than 0 know that but not why.
  const std::string& last_failure() const { return last_failure_; }
  const SaveCounts& counts() const { return counts_; }
  /// Milliseconds that training stood still for saving since the last call.
  double take_stall_ms();

 private:
  struct Pending {
    std::int64_t step = 0;
    std::string attempt;
  };
  void collect_outcomes();
  void discard_failed();
  void tell_failures();

  ckpt::SaverOptions options_;
  Config::CheckpointSection section_;
  Communicator& world_;
  Progress& progress_;
  std::function<void(const ckpt::SaveOutcome&)> on_outcome_;
  ckpt::Saver saver_;
  std::uint64_t save_number_ = 0;
  bool any_busy_ = false;           // at the last words
  std::deque<Pending> pending_;     // saves whose outcome is not agreed yet, oldest first
  std::vector<Pending> failed_;     // agreed failures whose files are still there
  std::vector<bool> ended_failed_;  // rank 0: outcomes not told yet, oldest first
  std::string reason_;              // rank 0: of the newest failure
  std::string last_failure_;
  std::string own_failure_;  // ranks other than 0: of this rank's part, not told yet
  double stall_ms_ = 0;
  SaveCounts counts_;
};

}  // namespace shardwright::trainer
