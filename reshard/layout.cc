#include "reshard/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/record_fields.h"

namespace shardwright::reshard {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(std::string_view text, const std::string& wrong) {
  throw Error(
      ErrorCode::usage,
      fmt::format("layout '{}': {}; letters t, p, d, z, v, each with a number, as in t2p1d4z1", text, wrong));
}

// The first (items mod parts) parts have one more.
std::vector<int> spread(int items, int parts) {
  std::vector<int> sizes(static_cast<std::size_t>(parts), items / parts);
  for (int i = 0; i < items % parts; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

Axis axis_of(char letter) {
  assert(letter == 't' || letter == 'd' || letter == 'p');
  return letter == 't' ? Axis::tp : letter == 'd' ? Axis::dp : Axis::pp;
}

int& along(Coordinates& at, Axis axis) { return axis == Axis::tp ? at.tp : axis == Axis::pp ? at.pp : at.dp; }

}  // namespace

int Layout::least_ranks() const {
  const double count = double{1} * tp * pp * std::max(dp, 1);
  return static_cast<int>(std::min<double>(count, kMaxRanks));
}

std::string Layout::string() const {
  std::string text = fmt::format("t{}p{}d{}z{}", tp, pp, dp, zero);
  if (vpp > 1) text += fmt::format("v{}", vpp);
  return text;
}

Coordinates coordinates(const Layout& layout, int rank) {
  assert(rank >= 0 && rank < layout.ranks());
  Coordinates at;
  for (const char letter : layout.order) {
    const int size = axis_size(layout, axis_of(letter));
    along(at, axis_of(letter)) = rank % size;
    rank /= size;
  }
  return at;
}

int rank_at(const Layout& layout, const Coordinates& at) {
  Coordinates counted = at;
  int rank = 0;
  int stride = 1;
  for (const char letter : layout.order) {
    rank += stride * along(counted, axis_of(letter));
    stride *= axis_size(layout, axis_of(letter));
  }
  return rank;
}

int axis_index(const Layout& layout, int rank, Axis axis) {
  Coordinates at = coordinates(layout, rank);
  return along(at, axis);
}

int axis_size(const Layout& layout, Axis axis) {
  switch (axis) {
    case Axis::tp:
      return layout.tp;
    case Axis::pp:
      return layout.pp;
    case Axis::dp:
      return layout.dp;
  }
  assert(false);
  return 1;
}

std::vector<int> axis_group(const Layout& layout, int rank, Axis axis) {
  std::vector<int> group;
  Coordinates at = coordinates(layout, rank);
  int& moving = along(at, axis);
  for (moving = 0; moving < axis_size(layout, axis); ++moving) group.push_back(rank_at(layout, at));
  return group;
}

Layout parse_layout(std::string_view text) {
  Layout layout;
  std::string seen;
  if (text.empty()) refuse(text, "is empty");
  for (const char* at = text.data(); at != text.data() + text.size();) {
    const char* end = text.data() + text.size();
    const char letter = *at++;
    int* degree = letter == 't'   ? &layout.tp
                  : letter == 'p' ? &layout.pp
                  : letter == 'd' ? &layout.dp
                  : letter == 'z' ? &layout.zero
                  : letter == 'v' ? &layout.vpp
                                  : nullptr;
    if (degree == nullptr) refuse(text, fmt::format("'{}' is not a letter of a layout", letter));
    if (seen.find(letter) != std::string::npos) refuse(text, fmt::format("'{}' stands twice", letter));
    seen += letter;
    const auto [next, error] = std::from_chars(at, end, *degree);
    if (next == at || *degree < 0) refuse(text, fmt::format("'{}' is not followed by a number", letter));
    if (error != std::errc() || *degree > kMaxRanks) {
      refuse(text, fmt::format("the number after '{}' is above {}", letter, kMaxRanks));
    }
    if (letter != 'z' && *degree < 1)
      refuse(text, fmt::format("'{}' is {}, at least 1 is needed", letter, *degree));
    if (letter == 'z' && *degree > 3) refuse(text, fmt::format("'z' is {}, ZeRO stages are 0 to 3", *degree));
    at = next;
  }
  return layout;
}

std::vector<int> stage_layers(const Layout& layout, const ModelSpec& model) {
  if (!layout.stages.empty()) return layout.stages;
  return spread(static_cast<int>(model.config.layers), layout.stage_count());
}

std::vector<StageLayers> virtual_stages(const Layout& layout, const ModelSpec& model, int rank) {
  const std::vector<int> sizes = stage_layers(layout, model);
  const auto here = static_cast<std::size_t>(coordinates(layout, rank).pp);
  std::vector<StageLayers> stages;
  std::int64_t layer = 0;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    if (s % static_cast<std::size_t>(layout.pp) == here) {
      stages.push_back({static_cast<int>(s), layer, sizes[s], s == 0, s + 1 == sizes.size()});
    }
    layer += sizes[s];
  }
  return stages;
}

bool is_rank_order(std::string_view order) {
  std::string sorted(order);
  std::sort(sorted.begin(), sorted.end());
  return sorted == "dpt";
}

std::string to_json(const Layout& layout, const ModelSpec& model) {
  return Json{{"tp", layout.tp},       {"pp", layout.pp},          {"dp", layout.dp},
              {"zero", layout.zero},   {"vpp", layout.vpp},        {"stages", stage_layers(layout, model)},
              {"order", layout.order}, {"string", layout.string()}}
      .dump();
}

Layout parse_layout_json(const std::string& json) {
  const Json j = ckpt::parse_object(json);
  Layout layout;
  layout.tp = ckpt::integer_field<int>(j, "tp");
  layout.pp = ckpt::integer_field<int>(j, "pp");
  layout.dp = ckpt::integer_field<int>(j, "dp");
  layout.zero = ckpt::integer_field<int>(j, "zero");
  layout.vpp = ckpt::integer_field<int>(j, "vpp");
  layout.stages = ckpt::integers_field<int>(j, "stages");
  if (j.contains("order")) layout.order = ckpt::text_field(j, "order");
  for (int degree : {layout.tp, layout.pp, layout.dp, layout.vpp}) {
    if (degree < 1 || degree > kMaxRanks) {
      throw Error(ErrorCode::damaged,
                  fmt::format("a degree is {}, and 1 to {} are possible", degree, kMaxRanks));
    }
  }
  if (std::int64_t{layout.tp} * layout.pp > kMaxRanks / layout.dp) {
    throw Error(ErrorCode::damaged, fmt::format("more than {} ranks", kMaxRanks));
  }
  if (!is_rank_order(layout.order)) {
    throw Error(ErrorCode::damaged,
                fmt::format("order is '{}', and not t, d and p, each once", layout.order));
  }
  // What the rule would give anyway is not a choice of the user's: dropping it lets a later change of pp
  // spread anew.
  std::int64_t layers = 0;
  for (int n : layout.stages) layers += n;
  if (layers >= 0 && layers <= std::numeric_limits<int>::max() && !layout.stages.empty() &&
      static_cast<std::int64_t>(layout.stages.size()) == std::int64_t{layout.pp} * layout.vpp &&
      layout.stages == spread(static_cast<int>(layers), static_cast<int>(layout.stages.size()))) {
    layout.stages.clear();
  }
  return layout;
}

}  // namespace shardwright::reshard
