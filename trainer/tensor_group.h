// The ranks that share each layer (tensor parallelism), and how the activations between its linears lie over
// them: alike on every rank, or, sequence parallel (Korthikanti et al. 2022), each rank with a run of the
// micro-batch's rows. Then norms, dropout and the residual stream cost a rank only its rows, and each sum
// over the group becomes a reduce-scatter with an all-gather before the next linear: the same bytes on the
// wire.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elements.h"
#include "trainer/communicator.h"

namespace shardwright::trainer {

/// Not thread-safe. gather(), sum() are collective over the group.
class TensorGroup {
 public:
  TensorGroup(Communicator& comm, bool sequence_parallel)
      : comm_(comm), spread_(sequence_parallel && comm.size() > 1) {}

  Communicator& comm() const { return comm_; }
  int size() const { return comm_.size(); }
  /// Whether rows are spread over the ranks.
  bool spread() const { return spread_; }

  /// The rows of the micro-batch in work, batch * positions; any number, so that ranks may have none.
  void set_rows(std::int64_t rows);
  std::int64_t rows() const { return rows_; }
  /// This rank's: [first_row, first_row + local_rows); all of them unless spread.
  std::int64_t local_rows() const { return local_rows_; }
  std::int64_t first_row() const { return first_row_; }
  /// The most that set_rows(rows) may give a rank, of `ranks` over which rows are spread.
  static std::int64_t most_local_rows(std::int64_t rows, std::int64_t ranks) {
    return (rows + ranks - 1) / ranks;
  }

  /// x(local rows, width) of all ranks as (rows, width): in `whole`, which has x's type, or x itself where
  /// every rank has all rows.
  kernels::ConstElements gather(kernels::ConstElements x, void* whole, std::int64_t width);
  /// Where a rank puts what it adds to a sum over the group: `whole`(rows, width), or the result's own place
  /// y where that has all rows.
  float* partial(float* y, float* whole) const { return spread_ ? whole : y; }
  /// y(local rows, width) = the sum over the group of what stands at partial(y, whole).
  void sum(float* whole, float* y, std::int64_t width);

 private:
  const std::vector<std::int64_t>& counts(std::int64_t width);

  Communicator& comm_;
  bool spread_;
  std::int64_t rows_ = 0;
  std::int64_t local_rows_ = 0;
  std::int64_t first_row_ = 0;
  std::vector<std::int64_t> counts_;  // elements per rank, for the width asked for last
};

}  // namespace shardwright::trainer
