// A view: one HDF5 file of virtual datasets, a global tensor each, over the shards of a checkpoint, for
// people with h5py and h5dump. It is never part of a checkpoint, and this library never reads one.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/env.h"

namespace shardwright::ckpt {

/// What a virtual dataset cannot notice; also the attribute `warning` of every view.
extern const char* const kViewWarning;

struct View {
  std::uint64_t step = 0;
  std::uint64_t tensors = 0;
  std::uint64_t datasets = 0;  // a tensor has one for each kind
  std::uint64_t boxes = 0;     // pieces that they are put together from
  std::uint64_t bytes = 0;     // of the file
  /// How the view names the checkpoint: relative to its own directory if the two have a directory in common
  /// below the root, so that the tree may be moved; else absolute.
  std::string source;
};

/// Writes `out` for the checkpoint directory `checkpoint`, through a temporary name: `/<kind>/<tensor>` of
/// the global shape (a scalar has shape [1], as in shards) and the stored type, with the attributes `tensor`,
/// `kind`, `dtype`, `global_shape` and `fingerprint`. What no shard gives reads as NaN, or 0 in types without
/// one. Error(exists) if `out` is there, Error(usage) if it lies inside a checkpoint, which holds nothing but
/// its own files; what check_structure() throws unless every shard is there with its size.
View write_view(Env& env, const std::string& checkpoint, const std::string& out);

}  // namespace shardwright::ckpt
