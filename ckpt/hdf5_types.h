// libhdf5 made ready for shards: thread safety checked, filter 32015 known, and the datatypes of stored
// values. Included by .cc files only.
#pragma once

#include <string>

#include "ckpt/dtype.h"
#include "ckpt/hdf5_handle.h"

namespace shardwright::ckpt {

/// Initialises libhdf5 once and stops it printing errors in this thread. Error(io) if it is not thread-safe:
/// savers have threads of their own.
void prepare_hdf5();

/// Throws Error(io) unless `status` is a success of libhdf5 at `what`, with libhdf5's own reason.
void hdf5_must(herr_t status, const std::string& what, const std::string& path);

/// The datatype of a stored dataset; little-endian. bf16 and f16 are 16-bit floats and bool an enumeration,
/// so that stock tools show numbers.
Hdf5Handle hdf5_type(DType type);

/// A string of exactly `length` bytes (at least 1), UTF-8, padded with zeros: variable-length ones live in a
/// heap without checksum.
Hdf5Handle hdf5_string(std::size_t length);

}  // namespace shardwright::ckpt
