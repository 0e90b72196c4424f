// How a shard is written, and what that took.
#pragma once

#include <cstdint>

#include "ckpt/codec.h"

namespace shardwright::ckpt {

/// Of workers that run beside a computation: `low` takes only what the rest of the machine leaves idle (on
/// Linux; elsewhere it is normal).
enum class WorkerPriority : std::uint8_t { normal, low };

struct ShardOptions {
  Codec codec = Codec::fast;
  int threads = 1;  // workers that shuffle, compress and hash
  WorkerPriority priority = WorkerPriority::normal;
  /// With low priority, after so long the thread that writes compresses too, as if somebody waited: where
  /// nothing is ever left idle a save must still end.
  double patience_s = 20;
  bool verify_writes = false;  // decode each chunk again and compare before it is written
  /// Chunks that a Source has stored already, in the codec's form, are written as they are.
  bool keep_stored = false;
  std::uint64_t max_in_flight_bytes = 64u << 20;
};

/// Where the time of a save went, and what it needed.
struct ShardStats {
  std::uint64_t raw_bytes = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t kept_chunks = 0;     // written as their source had them stored
  std::uint64_t encoded_chunks = 0;  // all others
  double encode_s = 0;               // summed over workers: reading, encoding, hashing, and verify_s
  double verify_s = 0;               // of that, decoding again and comparing
  double chunk_wait_s = 0;           // of the writing thread, for the next encoded chunk
  double write_s = 0;
  double fsync_s = 0;
  std::uint64_t peak_host_bytes = 0;  // in flight: raw and stored chunk buffers
};

}  // namespace shardwright::ckpt
