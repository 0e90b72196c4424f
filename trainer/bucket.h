// Tensors of a unit that data-parallel collectives treat together: their dp pieces, packed one rank's after
// the other's, in rounds of a bounded size.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/parameters.h"

namespace shardwright::trainer {

/// What a bucket takes: tensors that one rank of a model's copy holds alone, that tensor-parallel ranks hold
/// alike (norms, shared KV heads), or that two stages do (tied embeddings). The order in which MPI adds
/// depends on length and place in a buffer, and only buffers of such copies alone have the same of both on
/// all ranks with the same tensors: apart from the rest, copies come out of a reduction equal in each bit.
enum class BucketOf : std::uint8_t { own, tensor_copies, stage_copies };
BucketOf bucket_of(const reshard::Placed& placed);

/// Says what goes where, and moves nothing. The same on all ranks of a data axis, which hold the same boxes.
class Bucket {
 public:
  /// Elements of one tensor that follow each other in memory and in a round.
  struct Run {
    std::size_t parameter = 0;
    std::uint64_t offset = 0;        // of its first element in `holds`
    std::uint64_t piece_offset = 0;  // in the piece that it is part of
    std::uint64_t elements = 0;
  };

  /// Of `ranks` along the data axis; a round has at most `round_elements` of each of them.
  Bucket(const Parameters& parameters, std::size_t unit, BucketOf kind, int ranks,
         std::uint64_t round_elements);
  bool empty() const { return rounds() == 0; }
  /// Until the largest of the ranks' shares is through.
  std::int64_t rounds() const;
  /// What a round has of the pieces of a dp index, in the order in which they are packed; none for some.
  std::vector<Run> runs(std::int64_t round, int index) const;

 private:
  std::uint64_t round_elements_;
  std::vector<std::vector<Run>> pieces_;  // by dp index: its pieces, whole
};

}  // namespace shardwright::trainer
