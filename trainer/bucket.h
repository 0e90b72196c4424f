// Tensors that data-parallel collectives treat together: their dp pieces, packed one rank's after the
// other's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/communicator.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// What a bucket takes: tensors that one rank of a model's copy holds alone, that tensor-parallel ranks hold
/// alike (norms, shared KV heads), or that two stages do (tied embeddings). The order in which MPI adds
/// depends on length and place in a buffer, and only buffers of such copies alone have the same of both on
/// all ranks with the same tensors: apart from the rest, copies come out of a reduction equal in each bit.
enum class BucketOf : std::uint8_t { own, tensor_copies, stage_copies };

/// Collective over the data axis; all ranks of it hold the same boxes. Not thread-safe.
class Bucket {
 public:
  Bucket(Parameters& parameters, Communicator& data, BucketOf kind);
  bool empty() const { return packed_.empty(); }

  /// Sums gradients over the axis: each rank gets its pieces (uneven, some empty), what is outside them is
  /// stale.
  void reduce_scatter_gradients();
  /// Gradients into the bucket; all_reduce_gradients() sums what was packed last and puts it in their place.
  void pack_gradients();
  void all_reduce_gradients();
  /// Each rank's pieces of the parameters to all.
  void all_gather_values();

 private:
  /// A dp piece of one tensor, in the bucket and in the tensor's memory.
  struct Segment {
    std::size_t parameter = 0;
    std::uint64_t offset = 0;  // in `holds`
    std::uint64_t length = 0;
    std::uint64_t packed = 0;  // in packed_
  };
  std::span<const Segment> own_segments() const;

  Parameters& parameters_;
  Communicator& data_;
  std::vector<Segment> segments_;     // by dp index, then tensor
  std::vector<std::size_t> first_;    // per dp index, its first segment; one more at the end
  std::vector<std::int64_t> counts_;  // elements per dp index
  std::vector<float> packed_;         // all segments
  std::vector<float> reduced_;        // this rank's
};

}  // namespace shardwright::trainer
