// Worker threads that turn boxes into stored chunks, in parallel, while one thread takes them in order and
// writes them. Internal to the shard writer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ckpt/shard.h"

namespace shardwright::ckpt {

struct EncodedChunk {
  std::vector<std::byte> stored;
  std::uint32_t raw_bytes = 0;  // of a full chunk: one at the box's edge is padded with zeros
  std::uint64_t xxh3_64 = 0;
  Fingerprint fingerprint;  // of the elements, without padding
};

/// Raw and stored bytes in flight stay below options.max_in_flight_bytes, or are those of one chunk. The
/// first error of any worker ends all.
class ChunkPipeline {
 public:
  /// Starts the workers. `items` and `boxes` (plan_shard's records of them) must outlive this object.
  ChunkPipeline(std::span<const SaveItem> items, std::span<const BoxRecord> boxes,
                const ShardOptions& options);
  /// Stops and joins the workers.
  ~ChunkPipeline();

  /// The next chunk in order of boxes, and within a box in row-major order of its grid. Rethrows a worker's
  /// error; Error(peer) when `cancel` (may be null) becomes true.
  EncodedChunk next(const std::atomic<bool>* cancel);
  /// Hands a written chunk's memory back.
  void recycle(EncodedChunk&& chunk);

  double encode_seconds() const;
  double verify_seconds() const;  // of these
  std::uint64_t peak_bytes() const;

 private:
  struct Place {
    std::size_t box;
    std::uint64_t chunk;   // within the box
    std::uint64_t number;  // over all boxes
  };
  class Worker;

  void work();
  bool claim(Place& place, std::vector<std::byte>& buffer);
  void finish(const Place& place, EncodedChunk&& chunk, double seconds, double verify_seconds);
  std::uint64_t claim_bytes(std::size_t box) const;

  const std::span<const SaveItem> items_;
  const std::span<const BoxRecord> boxes_;
  const ShardOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::exception_ptr failure_;
  Place claim_{0, 0, 0};     // the next to be handed to a worker
  std::uint64_t taken_ = 0;  // chunks that next() has returned
  std::map<std::uint64_t, EncodedChunk> done_;
  std::vector<std::vector<std::byte>> spare_;
  std::uint64_t in_flight_ = 0;
  std::uint64_t peak_ = 0;
  double encode_seconds_ = 0;
  double verify_seconds_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace shardwright::ckpt
