#include "trainer/bucket.h"

#include <algorithm>
#include <numeric>

namespace shardwright::trainer {
namespace {

BucketOf kind_of(const reshard::Placed& placed) {
  if (placed.stage_copies > 1) return BucketOf::stage_copies;
  return placed.copies > 1 ? BucketOf::tensor_copies : BucketOf::own;
}

}  // namespace

Bucket::Bucket(Parameters& parameters, Communicator& data, BucketOf kind)
    : parameters_(parameters), data_(data) {
  std::vector<std::vector<ckpt::Box>> pieces;  // by parameter, then dp index; none if not of this bucket
  for (const Parameter& p : parameters.all()) {
    pieces.emplace_back();
    if (kind_of(p.placed) != kind) continue;
    pieces.back() =
        reshard::dp_pieces(parameters.model(), parameters.layout(), parameters.rank(), p.placed.tensor);
  }
  std::uint64_t at = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(data.size()); ++r) {
    first_.push_back(segments_.size());
    const std::uint64_t start = at;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].empty() || pieces[i][r].empty()) continue;
      const ckpt::Box& piece = pieces[i][r];
      segments_.push_back({i, row_offset(parameters.all()[i].placed.holds, piece), piece.elements(), at});
      at += piece.elements();
    }
    counts_.push_back(static_cast<std::int64_t>(at - start));
  }
  first_.push_back(segments_.size());
  packed_.resize(at);
  reduced_.resize(static_cast<std::size_t>(counts_[static_cast<std::size_t>(data.rank())]));
}

std::span<const Bucket::Segment> Bucket::own_segments() const {
  const std::size_t me = static_cast<std::size_t>(data_.rank());
  return std::span(segments_).subspan(first_[me], first_[me + 1] - first_[me]);
}

void Bucket::pack_gradients() {
  for (const Segment& s : segments_)
    std::copy_n(parameters_.all()[s.parameter].grad + s.offset, s.length, packed_.data() + s.packed);
}

void Bucket::reduce_scatter_gradients() {
  if (empty()) return;
  pack_gradients();
  data_.reduce_scatter_sum(packed_, reduced_, counts_);
  const float* next = reduced_.data();
  for (const Segment& s : own_segments()) {
    std::copy_n(next, s.length, parameters_.all()[s.parameter].grad + s.offset);
    next += s.length;
  }
}

void Bucket::all_reduce_gradients() {
  if (empty()) return;
  data_.all_reduce_sum(std::span<float>(packed_));
  for (const Segment& s : segments_)
    std::copy_n(packed_.data() + s.packed, s.length, parameters_.all()[s.parameter].grad + s.offset);
}

void Bucket::all_gather_values() {
  if (empty()) return;
  for (const Segment& s : own_segments())
    std::copy_n(parameters_.all()[s.parameter].value + s.offset, s.length, packed_.data() + s.packed);
  const std::size_t me = static_cast<std::size_t>(data_.rank());
  const std::int64_t start =
      std::accumulate(counts_.begin(), counts_.begin() + data_.rank(), std::int64_t{0});
  data_.all_gather(
      std::span(packed_).subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(counts_[me])),
      packed_, counts_);
  for (const Segment& s : segments_)
    std::copy_n(packed_.data() + s.packed, s.length, parameters_.all()[s.parameter].value + s.offset);
}

}  // namespace shardwright::trainer
