#include <chrono>

#include "ckpt/chunk_order.h"
#include "ckpt/chunk_pipeline.h"
#include "ckpt/error.h"
#include "ckpt/open_shard.h"
#include "ckpt/shard.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Part write_shard(Env& env, const std::string& directory, const std::string& attempt, int rank,
                 std::uint64_t step, std::span<const SaveItem> items, const ShardOptions& options,
                 ShardStats* stats, const SaveSignals* signals) {
  const SaveSignals nobody;
  ShardStats unread;
  ShardStats& measured = stats != nullptr ? *stats : unread;
  measured = {};
  const ShardTarget target{env, directory, attempt, step, form_of(options.codec)};
  const PlannedShard planned = planned_shard(items);
  if (!planned.plan.has_file) return empty_part(target, rank, planned.plan);

  OpenShard shard(target, rank, planned);
  {
    ChunkPipeline pipeline({&planned, 1}, options);
    for (std::uint64_t i = 0; i < planned.plan.chunks; ++i) {
      EncodedChunk chunk = pipeline.next(signals != nullptr ? *signals : nobody, measured);
      shard.write(chunk);
      pipeline.recycle(std::move(chunk));
    }
    pipeline.report(measured);
  }
  for (const BoxRecord& box : planned.plan.boxes)
    measured.raw_bytes += box.box.elements() * size_of(box.dtype);
  shard.close();
  Part part = shard.seal();
  const Clock::time_point start = Clock::now();
  env.sync_dir(directory);
  measured.write_s = shard.write_seconds();
  measured.fsync_s = shard.fsync_seconds() + seconds_since(start);
  return part;
}

}  // namespace shardwright::ckpt
