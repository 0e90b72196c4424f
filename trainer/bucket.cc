#include "trainer/bucket.h"

#include <algorithm>

namespace shardwright::trainer {

BucketOf bucket_of(const reshard::Placed& placed) {
  if (placed.stage_copies > 1) return BucketOf::stage_copies;
  return placed.copies > 1 ? BucketOf::tensor_copies : BucketOf::own;
}

Bucket::Bucket(const Parameters& parameters, std::size_t unit, BucketOf kind, int ranks,
               std::uint64_t round_elements)
    : round_elements_(round_elements), pieces_(static_cast<std::size_t>(ranks)) {
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter& p = parameters.all()[i];
    if (p.unit != unit || bucket_of(p.placed) != kind) continue;
    const std::vector<ckpt::Box> pieces =
        reshard::dp_pieces(parameters.model(), parameters.layout(), parameters.rank(), p.placed.tensor);
    for (std::size_t r = 0; r < pieces.size(); ++r)
      if (!pieces[r].empty())
        pieces_[r].push_back({i, row_offset(p.placed.holds, pieces[r]), 0, pieces[r].elements()});
  }
}

std::int64_t Bucket::rounds() const {
  std::uint64_t most = 0;
  for (const std::vector<Run>& pieces : pieces_) {
    std::uint64_t share = 0;
    for (const Run& piece : pieces) share += piece.elements;
    most = std::max(most, share);
  }
  return static_cast<std::int64_t>((most + round_elements_ - 1) / round_elements_);
}

std::vector<Bucket::Run> Bucket::runs(std::int64_t round, int index) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(round) * round_elements_;
  const std::uint64_t end = begin + round_elements_;
  std::vector<Run> runs;
  std::uint64_t at = 0;  // of the share
  for (const Run& piece : pieces_[static_cast<std::size_t>(index)]) {
    const std::uint64_t from = std::max(begin, at);
    const std::uint64_t to = std::min(end, at + piece.elements);
    if (from < to) runs.push_back({piece.parameter, piece.offset + (from - at), from - at, to - from});
    at += piece.elements;
  }
  return runs;
}

}  // namespace shardwright::trainer
