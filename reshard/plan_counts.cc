#include "reshard/plan_counts.h"

#include <algorithm>

#include "ckpt/shard.h"
#include "reshard/placement.h"
#include "reshard/plan.h"

namespace shardwright::reshard {
namespace {

// Below this many pairs it is not worth while to look for repeats.
constexpr std::size_t kFewReads = 1u << 20;

}  // namespace

Pieces written_pieces(const ModelSpec& model, const Layout& layout, std::uint32_t tensor) {
  Pieces pieces;
  for (Written& w : written(model, layout, tensor)) {
    pieces.boxes.push_back(w.box);
    pieces.chunks.push_back(w.chunk);
    pieces.owners.push_back(static_cast<std::uint32_t>(w.rank));
  }
  return pieces;
}

// Placement counts tiles at 4 bytes an element; a wider type takes the library's own choice, which stays
// within its limit.
ckpt::Dims stored_extents(const ckpt::Box& box, const ckpt::Dims& chunk, ckpt::DType dtype) {
  return ckpt::size_of(dtype) <= 4 ? chunk : ckpt::default_chunk(box.shape, ckpt::size_of(dtype));
}

PlanCounter::PlanCounter(TargetPlan& plan) : plan_(plan) {
  plan.ranks.assign(static_cast<std::size_t>(plan.layout.ranks()), {});
}

void PlanCounter::add(const Pieces& target, const Pieces& source, ckpt::DType dtype, std::uint64_t states,
                      bool cast) {
  std::vector<ckpt::Dims> extents;
  extents.reserve(target.boxes.size());
  for (std::size_t i = 0; i < target.boxes.size(); ++i) {
    RankShare& share = plan_.ranks[target.owners[i]];
    share.boxes += states;
    share.bytes += states * target.boxes[i].elements() * ckpt::size_of(dtype);
    extents.push_back(stored_extents(target.boxes[i], target.chunks[i], dtype));
    plan_.target_chunks += states * ckpt::element_count(ckpt::chunk_grid(target.boxes[i], extents[i]));
  }
  const std::vector<Copy> copies = overlap(target.boxes, source.boxes);
  plan_.copies += states * copies.size();
  for (const Copy& copy : copies) {
    if (!cast)
      plan_.kept_chunks += states * ckpt::equal_chunks(target.boxes[copy.to], extents[copy.to],
                                                       source.boxes[copy.from], source.chunks[copy.from]);
    reads_.emplace_back(target.owners[copy.to], source.owners[copy.from]);
  }
  if (reads_.size() > 2 * distinct_ + kFewReads) drop_repeats();
}

void PlanCounter::drop_repeats() {
  std::sort(reads_.begin(), reads_.end());
  reads_.erase(std::unique(reads_.begin(), reads_.end()), reads_.end());
  distinct_ = reads_.size();
}

void PlanCounter::finish() {
  drop_repeats();
  std::vector<std::uint32_t> sources;
  for (const auto& [rank, file] : reads_) {
    ++plan_.ranks[rank].source_files;
    sources.push_back(file);
  }
  std::sort(sources.begin(), sources.end());
  plan_.files_read =
      static_cast<std::uint64_t>(std::unique(sources.begin(), sources.end()) - sources.begin());
  plan_.files = static_cast<std::uint64_t>(
      std::count_if(plan_.ranks.begin(), plan_.ranks.end(), [](const RankShare& r) { return r.boxes > 0; }));
}

}  // namespace shardwright::reshard
