// Worker threads that turn boxes into stored chunks, in parallel, while one thread takes them in order and
// writes them. Internal to the shard writer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ckpt/chunk_order.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {

struct EncodedChunk {
  ChunkTask task;
  std::vector<std::byte> stored;
  std::uint32_t raw_bytes = 0;  // of a full chunk: one at the box's edge is padded with zeros
  std::uint64_t xxh3_64 = 0;
  bool kept = false;        // as the source had it stored
  Fingerprint fingerprint;  // of the elements, without padding
};

/// Raw and stored bytes in flight stay below options.max_in_flight_bytes, or are those of one chunk. The
/// first error of any worker ends all.
class ChunkPipeline {
 public:
  /// Starts the workers. `shards` must outlive this object.
  ChunkPipeline(std::span<const PlannedShard> shards, const ShardOptions& options);
  /// Stops and joins the workers.
  ~ChunkPipeline();

  /// The next chunk in ChunkOrder's order. Rethrows a worker's error; Error(peer) once it is cancelled. In a
  /// hurry, the calling thread encodes too where it would wait; where there are several workers of its own
  /// priority it takes the place of one, so that they do not take turns on the processors. Adds to the waits
  /// and chunks of `stats`.
  EncodedChunk next(const SaveSignals& signals, ShardStats& stats);
  /// Hands a written chunk's memory back.
  void recycle(EncodedChunk&& chunk);

  /// Adds the workers' times and the peak of memory to `stats`.
  void report(ShardStats& stats) const;

 private:
  struct Place {
    ChunkTask task;
    std::uint64_t number = 0;  // in the order
    std::uint64_t bytes = 0;   // of memory, claimed for it
  };
  class Worker;

  EncodedChunk awaited(const SaveSignals& signals);

  void work(bool first);
  bool in_a_hurry(const SaveSignals& signals) const;
  void help();
  bool encode_one(Worker& worker, bool may_wait, bool replaceable);
  bool claim(Place& place, std::vector<std::byte>& buffer, bool may_wait, bool replaceable);
  void finish(const Place& place, EncodedChunk&& chunk, double seconds, double verify_seconds);

  const ShardOptions options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  mutable std::mutex mutex_;
  std::condition_variable ready_;  // next()'s chunk is there, or never will be
  std::condition_variable room_;   // for a worker's chunk; one leaves as one comes, so one is told
  bool stopping_ = false;
  bool replaced_ = false;  // the first worker, by next()'s thread
  std::exception_ptr failure_;
  ChunkOrder order_;                              // from the next chunk on to be handed to a worker
  std::uint64_t claimed_ = 0;                     // chunks handed to workers
  std::uint64_t taken_ = 0;                       // chunks that next() has returned
  std::deque<std::optional<EncodedChunk>> done_;  // from taken_ on, as far as chunks are claimed
  std::vector<std::vector<std::byte>> spare_;
  std::uint64_t in_flight_ = 0;
  std::uint64_t peak_ = 0;
  double encode_seconds_ = 0;
  double verify_seconds_ = 0;
  std::unique_ptr<Worker> own_worker_;  // of next()'s thread
  std::vector<std::thread> threads_;
};

}  // namespace shardwright::ckpt
