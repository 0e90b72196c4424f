// One shard on its way to the disk: its chunks come in order, perhaps between those of other shards. Internal
// to the shard writer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/chunk_order.h"
#include "ckpt/chunk_pipeline.h"
#include "ckpt/shard.h"
#include "ckpt/shard_file.h"

namespace shardwright::ckpt {

/// What the shards of a call have in common.
struct ShardTarget {
  Env& env;
  std::string directory;
  std::string attempt;
  std::uint64_t step = 0;
  ChunkForm form = ChunkForm::zstd;
};

/// write() and close() belong to one thread; seal() may follow on another. After an Error the file is
/// abandoned. Fault points shard.open, shard.mid, shard.close, shard.fsync.
class OpenShard {
 public:
  /// Creates the file; Error(exists) if it is there already. `target` and `shard`, which has a file, outlive
  /// this object.
  OpenShard(const ShardTarget& target, int rank, const PlannedShard& shard);

  /// The next of the shard's chunks.
  void write(const EncodedChunk& chunk);
  bool complete() const { return rows_.size() == plan_.chunks; }
  /// Writes the table and closes the file; all chunks must be there.
  void close();
  /// Checks that the system has what libhdf5 was given, makes it durable (but not yet its name in the
  /// directory), and returns what to publish.
  Part seal();

  double write_seconds() const { return write_s_; }
  double fsync_seconds() const { return fsync_s_; }

 private:
  void create_datasets(std::size_t end);

  const ShardTarget& target_;
  int rank_;
  const ShardPlan& plan_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  std::optional<ShardFile> hdf5_;
  std::optional<Hdf5Handle> dataset_;  // of box next_box_ - 1
  std::size_t next_box_ = 0;           // the first without a dataset
  std::vector<Fingerprint> fingerprints_;
  std::vector<ChunkRow> rows_;
  FileRecord record_;
  double write_s_ = 0;
  double fsync_s_ = 0;
};

/// The part of a rank without a file.
Part empty_part(const ShardTarget& target, int rank, const ShardPlan& plan);

}  // namespace shardwright::ckpt
