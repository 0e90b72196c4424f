#include "trainer/tensor_group.h"

#include <algorithm>
#include <span>

namespace shardwright::trainer {
namespace {

// The first (rows mod ranks) ranks have one more.
std::int64_t rows_of(std::int64_t rows, std::int64_t ranks, std::int64_t rank) {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

std::span<float> floats(float* values, std::int64_t count) {
  return {values, static_cast<std::size_t>(count)};
}

}  // namespace

void TensorGroup::set_rows(std::int64_t rows) {
  rows_ = rows;
  local_rows_ = rows;
  first_row_ = 0;
  if (!spread_) return;
  const std::int64_t ranks = comm_.size();
  const std::int64_t rank = comm_.rank();
  local_rows_ = rows_of(rows, ranks, rank);
  first_row_ = rank * (rows / ranks) + std::min(rank, rows % ranks);
}

std::int64_t TensorGroup::most_local_rows(std::int64_t rows) const {
  return spread_ ? rows_of(rows, comm_.size(), 0) : rows;
}

const std::vector<std::int64_t>& TensorGroup::counts(std::int64_t width) {
  counts_.clear();
  for (std::int64_t rank = 0; rank < comm_.size(); ++rank)
    counts_.push_back(rows_of(rows_, comm_.size(), rank) * width);
  return counts_;
}

const float* TensorGroup::gather(const float* x, float* whole, std::int64_t width) {
  if (!spread_) return x;
  comm_.all_gather(std::span<const float>(x, static_cast<std::size_t>(local_rows_ * width)),
                   floats(whole, rows_ * width), counts(width));
  return whole;
}

void TensorGroup::sum(float* whole, float* y, std::int64_t width) {
  if (spread_) {
    comm_.reduce_scatter_sum(floats(whole, rows_ * width), floats(y, local_rows_ * width), counts(width));
  } else if (comm_.size() > 1) {
    comm_.all_reduce_sum(floats(y, rows_ * width));
  }
}

}  // namespace shardwright::trainer
