// Asynchronous saving: one per process, a background thread behind the training loop. Comm-free: ranks meet
// in the attempt directory only, whose name each of them knows from the generation and the save number.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/contents.h"
#include "ckpt/env.h"
#include "ckpt/error.h"
#include "ckpt/shard_options.h"
#include "ckpt/source.h"

namespace shardwright::ckpt {

struct SaverOptions {
  std::string checkpoints_dir;
  std::string run_dir;  // holds GENERATION
  std::string run;      // uuid
  std::uint64_t generation = 0;
  int rank = 0;     // rank 0 also commits and prunes
  int writers = 1;  // ranks that publish a part
  ShardOptions shard;
  double commit_deadline_s = 120;  // for the parts of all ranks, once rank 0 has written its own
  double save_deadline_s = std::numeric_limits<double>::infinity();  // for the same, from start() on
  int keep = 0;                                                      // newest valid checkpoints kept; 0: all
  bool async = true;
  /// For ranks that meet in the file system only: rank 0 ends a failed attempt for all by itself, as soon as
  /// it fails. See given_up().
  bool gives_up_alone = false;
  /// The items' host memory is read while it is written, and copied only where before_write() comes earlier;
  /// all that changes it must call that. Otherwise start() copies it, with as many threads as the shard has
  /// workers, into memory that stays from save to save.
  bool lazy = false;
};

struct SaveRequest {
  std::uint64_t step = 0;
  std::uint64_t save_number = 0;  // counts due saves, skipped ones too; equal on all ranks
  std::vector<SaveItem> items;
  Description description;  // used on rank 0
  /// Copies that this rank holds of what other ranks write, box by box as they do, or, where nobody writes a
  /// state, all copies of a box. They must have the same values, else nothing is committed. Read as `items`
  /// are, with before_write() as for these.
  std::vector<SaveItem> replicas = {};
  /// As with SaverOptions::lazy, for this save.
  bool lazy = false;
};

enum class SaveResult { committed, failed, skipped };

/// What came of a save; the fields of the metrics record "checkpoint". On ranks other than 0 `committed`
/// means that the part was published. Everything about save N is captured at the call.
struct SaveOutcome {
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  std::uint64_t save_number = 0;
  std::string attempt;
  std::string path;
  SaveResult result = SaveResult::failed;
  std::string reason;
  ErrorCode code = ErrorCode::io;  // of the reason, where the save failed
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;
  // Of the calling thread. Where a save runs in the background, stall_ms is the sum of the two below it; else
  // it is total_s.
  double stall_ms = 0;
  double snapshot_ms = 0;      // in start(), until the state is safe
  double before_write_ms = 0;  // in before_write(): waiting for chunks that are being read, and copying
  // Of the saving thread, in the order of a save.
  double total_s = 0;     // from start() to the end
  double queue_s = 0;     // until it began
  double replicas_s = 0;  // fingerprints of replicas
  double encode_s = 0;
  double verify_s = 0;
  double chunk_wait_s = 0;
  double write_s = 0;
  double fsync_s = 0;
  double commit_s = 0;                // rank 0: all that follows its own part
  double parts_wait_s = 0;            // of that, for the parts of all ranks
  std::uint64_t copied_bytes = 0;     // by the snapshot, at once or before a write
  std::uint64_t peak_host_bytes = 0;  // chunk buffers and copies
  std::vector<std::string> retired;   // checkpoints that retention removed
};

/// Retention runs after each commit of rank 0, so it can never remove what this generation resumed from
/// before the generation has committed. All calls are made by one thread, the training loop; the saver has
/// its own.
class Saver {
 public:
  Saver(Env& env, SaverOptions options);
  /// Cancels what is running and joins: within the time of one chunk or one system call.
  ~Saver();

  /// Takes the snapshot and returns (or, without async, returns when the save has ended). Fault point
  /// save.begin. The previous save must have ended: wait() or skip first. Does not throw for a save that
  /// fails: see take_outcomes().
  void start(SaveRequest request);
  /// Nothing is read from the items' memory any more once it has returned; a save that had not read all of it
  /// fails. For who cannot wait for its end.
  void let_go();
  /// Records a due save that was not made.
  void skip(std::uint64_t step, std::uint64_t save_number, const std::string& reason);
  /// True while a save is in work here.
  bool busy() const;
  /// The running save is waited for, or has taken too long: it takes the time of one thread of ordinary
  /// priority as well, so that low priority (ShardOptions) starves nobody. Returns at once.
  void hurry();
  /// Hurries and waits for the running save; Error(deadline) after `seconds`. Does not throw for a save that
  /// failed.
  void wait(double seconds);
  /// Ends the running save, if there is one, as failed for `reason`: what the caller has learned from another
  /// rank, which could not say so in a part (a full disk). Returns at once.
  void cancel(const std::string& reason);
  /// Called by everything that changes saved state, just before it does. Fault point save.window at the first
  /// call after start(), where a failure ends that save.
  void before_write(const std::string& tensor, const std::string& kind, const Box& box);
  /// Outcomes since the last call, oldest first.
  std::vector<SaveOutcome> take_outcomes();
  /// With gives_up_alone, true once rank 0 has given an attempt up: it is gone, or where it was is told by an
  /// empty `.trash-` directory, which stays until rank 0 has committed again: a rank that comes late must not
  /// wait for it.
  bool given_up(const std::string& attempt, std::uint64_t step) const;
  /// Removes this rank's files of a failed attempt (rank 0: the directory, moved to `.trash-` first; what
  /// cannot be removed now is removed when the next generation starts). Error(busy) if another generation
  /// took over.
  void discard(const std::string& attempt, std::uint64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::ckpt
