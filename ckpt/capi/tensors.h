// Numbers and arrays of the C interface as the library's own types, checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ckpt/box.h"
#include "ckpt/contents.h"
#include "ckpt/dtype.h"

namespace shardwright::capi {

/// The data type of a number of the header; Error(usage) for any other number.
ckpt::DType dtype_of(int number);
/// `count` extents or coordinates; Error(usage) above 8 dimensions, or if there are some and no array.
ckpt::Dims dims_of(std::uint32_t count, const std::uint64_t* values, const char* argument);
/// Error(usage) unless the box has as many dimensions as the shape and lies inside it, and `bytes` of memory
/// at `data` are those of the box; `thing` begins the message.
void check_box(const std::string& thing, const ckpt::Box& box, const ckpt::Dims& global_shape,
               ckpt::DType dtype, const void* data, std::size_t bytes);
/// The text of a document by its number in the header; Error(usage) for any other number.
std::string& document_of(ckpt::Description& description, int number);

}  // namespace shardwright::capi
