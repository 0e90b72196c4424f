#include "trainer/tensor_group.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
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

const std::vector<std::int64_t>& TensorGroup::counts(std::int64_t width) {
  counts_.clear();
  for (std::int64_t rank = 0; rank < comm_.size(); ++rank)
    counts_.push_back(rows_of(rows_, comm_.size(), rank) * width);
  return counts_;
}

kernels::ConstElements TensorGroup::gather(kernels::ConstElements x, void* whole, std::int64_t width) {
  if (!spread_) return x;
  const auto size = static_cast<std::int64_t>(kernels::element_size(x.type));
  const kernels::Elements all(whole, x.type);
  const auto bytes = static_cast<std::size_t>(local_rows_ * width * size);
  if (bytes > 0) std::memcpy((all + first_row_ * width).data, x.data, bytes);
  comm_
      .start_all_gather({static_cast<std::byte*>(whole), static_cast<std::size_t>(rows_ * width * size)},
                        counts(width * size))
      ->wait();
  return all;
}

void TensorGroup::sum(float* whole, float* y, std::int64_t width) {
  if (spread_) {
    comm_.reduce_scatter_sum(floats(whole, rows_ * width), floats(y, local_rows_ * width), counts(width));
  } else if (comm_.size() > 1) {
    comm_.all_reduce_sum(floats(y, rows_ * width));
  }
}

}  // namespace shardwright::trainer
