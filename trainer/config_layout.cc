#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trainer/config.h"

namespace shardwright::trainer {

std::vector<Override> layout_overrides(const reshard::Layout& layout) {
  return {{"parallel.tp", std::to_string(layout.tp)},
          {"parallel.pp", std::to_string(layout.pp)},
          {"parallel.dp", std::to_string(layout.dp)},
          {"parallel.vpp", std::to_string(layout.vpp)},
          {"parallel.zero", std::to_string(layout.zero)},
          {"parallel.stages", fmt::format("[{}]", fmt::join(layout.stages, ", "))},
          {"parallel.rank_order", layout.order}};
}

}  // namespace shardwright::trainer
