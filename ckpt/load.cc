#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/box_index.h"
#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/load_buffers.h"
#include "ckpt/parallel.h"
#include "ckpt/read_ahead.h"
#include "ckpt/shard.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

/// One item's share of one stored chunk. Sorted by file and row, the uses of a chunk lie together, so that
/// each chunk is read once, and a file from front to back.
struct Use {
  std::uint32_t file = 0;
  std::uint32_t item = 0;
  std::uint64_t row = 0;    // in the file's chunk table
  std::uint64_t index = 0;  // in the box
  std::size_t box = 0;      // row of manifest.boxes
};

[[noreturn]] void refuse(const LoadItem& item, const std::string& path, const std::string& what) {
  throw Error(ErrorCode::mismatch, fmt::format("{} {}: {}", item.tensor, item.kind, what), path);
}

std::uint32_t state_of(const Checkpoint& checkpoint, const LoadItem& item) {
  const auto state = checkpoint.find_state(item.tensor, item.kind);
  if (!state) refuse(item, checkpoint.path(), "not in checkpoint " + checkpoint.path());
  const StateEntry& entry = checkpoint.manifest().states[*state];
  const Dims& shape = checkpoint.manifest().tensors[entry.tensor].shape;
  if (shape != item.global_shape)
    refuse(item, checkpoint.path(),
           fmt::format("wanted with shape {}; the checkpoint has {}", to_string(item.global_shape),
                       to_string(shape)));
  if (entry.dtype != item.dtype)
    refuse(item, checkpoint.path(),
           fmt::format("wanted as {}; the checkpoint has {}", name(item.dtype), name(entry.dtype)));
  bool inside = item.box.offset.size() == shape.size() && item.box.shape.size() == shape.size();
  for (std::size_t d = 0; inside && d < shape.size(); ++d)
    inside = item.box.shape[d] <= shape[d] && item.box.offset[d] <= shape[d] - item.box.shape[d];
  if (!inside)
    refuse(item, checkpoint.path(),
           fmt::format("box {} is not inside the shape {}", to_string(item.box), to_string(shape)));
  return *state;
}

std::vector<Use> plan(const Checkpoint& checkpoint, std::span<const LoadItem> items) {
  const Manifest& m = checkpoint.manifest();
  std::vector<Use> uses;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const LoadItem& item = items[i];
    const std::uint32_t state = state_of(checkpoint, item);
    if (item.box.empty()) continue;
    std::uint64_t covered = 0;
    checkpoint.index().overlapping(state, item.box, [&](std::size_t box, const Box& region) {
      covered += region.elements();
      for_each_chunk(m.boxes[box], region, [&](const ChunkPlace& chunk) {
        uses.push_back({m.boxes[box].file, static_cast<std::uint32_t>(i),
                        m.boxes[box].first_chunk + chunk.index, chunk.index, box});
      });
    });
    if (covered != item.box.elements())
      throw Error(ErrorCode::damaged,
                  fmt::format("{} {}: only {} of the {} elements of {} are in {}", item.tensor, item.kind,
                              covered, item.box.elements(), to_string(item.box), checkpoint.path()),
                  checkpoint.path());
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    if (a.file != b.file) return a.file < b.file;
    if (a.row != b.row) return a.row < b.row;
    return a.item < b.item;
  });
  return uses;
}

/// The chunk's box as stored, and the same without what reaches beyond the writer's box.
struct Stored {
  Box full;
  Box clipped;
};
Stored stored_box(const BoxEntry& entry, std::uint64_t index) {
  const Box clipped = chunk_box(entry.box, entry.chunk, index);
  return {{clipped.offset, entry.chunk}, clipped};
}

/// A pool's buffers for the time of one load.
class Lease {
 public:
  explicit Lease(LoadBuffersPool& pool) : pool_(pool), buffers_(pool.take()) {}
  ~Lease() { pool_.give_back(std::move(buffers_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  LoadBuffers& operator*() const { return *buffers_; }

 private:
  LoadBuffersPool& pool_;
  std::unique_ptr<LoadBuffers> buffers_;
};

/// Reads one chunk and gives it to all items that need it.
void fill(const Checkpoint& checkpoint, std::span<const LoadItem> items, std::span<const Use> uses,
          LoadBuffers& worker, std::atomic<std::uint64_t>& read_bytes) {
  const Manifest& m = checkpoint.manifest();
  const BoxEntry& entry = m.boxes[uses[0].box];
  const std::size_t size = size_of(m.states[entry.state].dtype);
  const Stored chunk = stored_box(entry, uses[0].index);
  const std::uint64_t raw_bytes = chunk.full.elements() * size;
  const ShardReader& shard = checkpoint.shard(entry.file);
  shard.read_stored(uses[0].row, worker.stored);
  if (shard.table()[uses[0].row].raw_bytes != raw_bytes)
    throw Error(ErrorCode::damaged,
                fmt::format("{}/{}: chunk {} has {} bytes; {} of {} needs {}", checkpoint.path(),
                            shard.record().name, uses[0].row, shard.table()[uses[0].row].raw_bytes,
                            entry.dataset, to_string(chunk.full.shape), raw_bytes),
                checkpoint.path() + "/" + shard.record().name);
  read_bytes += worker.stored.size();

  const LoadItem& first = items[uses[0].item];
  if (uses.size() == 1 && chunk.full == chunk.clipped && contains(first.box, chunk.full)) {
    if (const auto start = dense_start(first.box, chunk.full)) {
      worker.decoder.decode(worker.stored, size, {first.destination + *start * size, raw_bytes});
      return;
    }
  }
  worker.raw.resize(raw_bytes);
  worker.decoder.decode(worker.stored, size, worker.raw);
  for (const Use& use : uses) {
    const LoadItem& item = items[use.item];
    if (const auto region = intersect(chunk.clipped, item.box))
      copy_region(worker.raw.data(), chunk.full, item.destination, item.box, *region, size);
  }
}

}  // namespace

LoadStats Checkpoint::load(std::span<const LoadItem> items, const LoadOptions& options) const {
  const trace::Span span("load");
  fault_point("load.plan", options.rank, commit().step);
  const std::vector<Use> uses = plan(*this, items);
  std::vector<std::size_t> begin;  // first use of each distinct chunk
  for (std::size_t i = 0; i < uses.size(); ++i)
    if (i == 0 || uses[i].file != uses[i - 1].file || uses[i].row != uses[i - 1].row) begin.push_back(i);
  begin.push_back(uses.size());
  const std::size_t chunks = begin.size() - 1;

  std::deque<Lease> workers;  // as many as parallel_for() has threads for this
  const auto threads = std::min<std::size_t>(static_cast<std::size_t>(std::max(options.threads, 1)), chunks);
  for (std::size_t i = 0; i < threads; ++i) workers.emplace_back(load_buffers());
  std::atomic<std::uint64_t> read_bytes{0};
  // By raw sizes: what is stored of a chunk, its shard's table knows, which is read when it is needed.
  std::vector<std::uint64_t> sizes(chunks);
  for (std::size_t i = 0; i < chunks; ++i) {
    const BoxEntry& entry = manifest().boxes[uses[begin[i]].box];
    sizes[i] = element_count(entry.chunk) * size_of(manifest().states[entry.state].dtype);
  }
  ReadAhead ahead(std::move(sizes), [&](std::size_t i) {
    const Use& use = uses[begin[i]];
    shard(use.file).will_need(use.row);
  });
  if (chunks == 0) fault_point("load.mid", options.rank, commit().step);
  parallel_for(options.threads, chunks, [&](int worker, std::size_t i) {
    if (i == chunks / 2) fault_point("load.mid", options.rank, commit().step);
    const trace::Span chunk("load chunk", "chunk", static_cast<std::int64_t>(i));
    ahead.reading(i);
    const std::span<const Use> group(uses.data() + begin[i], begin[i + 1] - begin[i]);
    try {
      fill(*this, items, group, *workers[static_cast<std::size_t>(worker)], read_bytes);
    } catch (const Error& e) {
      const Error why = explain(e);
      const LoadItem& item = items[group[0].item];
      throw Error(why.code(), fmt::format("{} {}: {}", item.tensor, item.kind, why.what()), why.path());
    }
  });
  LoadStats stats;
  stats.read_bytes = read_bytes;
  stats.chunks = chunks;
  for (const Lease& worker : workers) stats.peak_host_bytes += (*worker).host_bytes();
  for (std::size_t i = 0; i < chunks; ++i)
    stats.needed_bytes += shard(uses[begin[i]].file).table()[uses[begin[i]].row].stored_bytes;
  return stats;
}

}  // namespace shardwright::ckpt
