#include "ckpt/typed_items.h"

#include <fmt/format.h>

namespace shardwright::ckpt {

void check_memory(const std::string& tensor, const std::string& kind, const Box& box, std::uint64_t values) {
  if (checked_element_count(box.shape) != values)
    throw Error(ErrorCode::usage,
                fmt::format("tensor '{}' kind '{}': {} values in memory for the box {}; one "
                            "for each of its elements is right",
                            tensor, kind, values, to_string(box)));
}

}  // namespace shardwright::ckpt
