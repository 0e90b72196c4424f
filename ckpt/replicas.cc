#include "ckpt/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/parallel.h"
#include "ckpt/shard_plan.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

/// A fingerprint and the ranks that vouch for it.
struct Vouched {
  Fingerprint fingerprint;
  std::vector<int> ranks;
};

using State = std::pair<std::string, std::string>;  // tensor and kind

struct Written {
  int rank;
  const BoxRecord* box;
};

/// The sum over all written boxes inside of `box`; nobody's if there is none.
Vouched written(const std::vector<Written>& boxes, const Box& box) {
  Vouched sum;
  for (const auto& [rank, record] : boxes) {
    // Whether boxes of one tensor have as many dimensions is checked where parts are joined.
    if (record->box.shape.size() != box.shape.size() || record->box.empty()) continue;
    if (!contains(box, record->box)) continue;
    sum.fingerprint += record->fingerprint;
    sum.ranks.push_back(rank);
  }
  return sum;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

[[noreturn]] void refuse(const ReplicaRecord& replica, int rank, const Vouched& other) {
  throw Error(
      ErrorCode::damaged,
      fmt::format("tensor '{}' kind '{}' box {}: rank {} holds other values than {}, where equal ones are "
                  "right; memory or processor of one of them may be faulty, nothing is committed",
                  replica.tensor, replica.kind, to_string(replica.box), rank, ranks_text(other.ranks)));
}

}  // namespace

std::vector<ReplicaRecord> fingerprint_replicas(std::span<const SaveItem> items, int threads,
                                                const std::atomic<bool>* cancel) {
  const trace::Span span("fingerprint replicas");
  const ShardPlan plan = plan_shard(items);
  std::vector<ReplicaRecord> replicas(items.size());
  std::vector<std::pair<std::size_t, std::uint64_t>> chunks;  // of which item, which
  for (std::size_t i = 0; i < items.size(); ++i) {
    replicas[i] = {items[i].tensor, items[i].kind, items[i].box, {}};
    for (std::uint64_t chunk = 0; chunk < plan.boxes[i].chunks; ++chunk) chunks.emplace_back(i, chunk);
  }
  std::mutex mutex;  // guards the sums
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(std::max(threads, 1)));
  parallel_for(threads, chunks.size(), [&](int worker, std::size_t n) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
      throw Error(ErrorCode::peer, "save: ended early because the attempt has failed elsewhere");
    const auto [i, chunk] = chunks[n];
    const SaveItem& item = items[i];
    const Box part = chunk_box(item.box, plan.boxes[i].chunk, chunk);
    std::vector<std::byte>& values = buffers[static_cast<std::size_t>(worker)];
    values.resize(part.elements() * size_of(item.dtype));
    item.source->read(part, values.data());
    const Fingerprint sum = fingerprint(values.data(), size_of(item.dtype), part, item.global_shape);
    const std::lock_guard lock(mutex);
    replicas[i].fingerprint += sum;
  });
  return replicas;
}

void compare_replicas(std::span<const Part> parts) {
  const trace::Span span("compare replicas");
  std::map<State, std::vector<Written>> boxes;
  std::map<std::tuple<std::string, std::string, std::string>, Vouched> first;  // where nothing is written
  for (const Part& part : parts)
    for (const BoxRecord& box : part.boxes) boxes[{box.tensor, box.kind}].push_back({part.rank, &box});
  for (const Part& part : parts)
    for (const ReplicaRecord& replica : part.replicas) {
      const auto state = boxes.find({replica.tensor, replica.kind});
      if (state == boxes.end()) {
        const auto [at, is_first] = first.try_emplace({replica.tensor, replica.kind, to_string(replica.box)},
                                                      Vouched{replica.fingerprint, {part.rank}});
        if (!is_first && !(at->second.fingerprint == replica.fingerprint))
          refuse(replica, part.rank, at->second);
        continue;
      }
      const Vouched other = written(state->second, replica.box);
      if (other.fingerprint.count != replica.fingerprint.count)
        throw Error(
            ErrorCode::usage,
            fmt::format("tensor '{}' kind '{}' box {}: rank {} has a copy, of which {} of {} elements "
                        "are written",
                        replica.tensor, replica.kind, to_string(replica.box), part.rank,
                        other.fingerprint.count, replica.fingerprint.count));
      if (!(other.fingerprint == replica.fingerprint)) refuse(replica, part.rank, other);
    }
}

}  // namespace shardwright::ckpt
