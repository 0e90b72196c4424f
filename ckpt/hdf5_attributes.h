// Attributes of HDF5 objects as this format has them: texts of fixed length and lists of numbers. Included by
// .cc files only.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/box.h"
#include "ckpt/hdf5_handle.h"

namespace shardwright::ckpt {

/// Adds an attribute to `object`; `path` is for messages. Error(io).
void write_text_attribute(hid_t object, const char* name, const std::string& text, const std::string& path);
/// One-dimensional; no elements for the extents of a scalar.
void write_dims_attribute(hid_t object, const char* name, const Dims& values, const std::string& path);
void write_number_attribute(hid_t object, const char* name, std::uint64_t value, const std::string& path);

}  // namespace shardwright::ckpt
