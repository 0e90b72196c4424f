#include "reshard/draw.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "ckpt/nearest.h"
#include "reshard/placement.h"
#include "reshard/reshard.h"

namespace shardwright::reshard {
namespace {

// Rank of a shard by its name, rank-NNNNN.h5.
int rank_of(const std::string& file) {
  int rank = -1;
  const std::size_t digits = file.find_first_of("0123456789");
  if (digits != std::string::npos) {
    std::from_chars(file.data() + digits, file.data() + file.size(), rank);
  }
  return rank;
}

// The state that stands for a tensor: its weights, or the first kind of another program's checkpoint.
std::uint32_t shown_state(const ckpt::Manifest& manifest, std::uint32_t tensor) {
  std::uint32_t shown = 0;
  bool found = false;
  for (std::uint32_t s = 0; s < manifest.states.size(); ++s) {
    if (manifest.states[s].tensor != tensor) continue;
    if (!found || manifest.states[s].kind == kParam) shown = s;
    found = true;
  }
  return shown;
}

// The parts as the files hold them.
std::vector<DrawnPart> stored_parts(const ckpt::Manifest& manifest, std::uint32_t tensor) {
  std::vector<DrawnPart> parts;
  const std::uint32_t state = shown_state(manifest, tensor);
  for (const ckpt::BoxEntry& box : manifest.boxes) {
    if (box.state == state && !box.box.empty())
      parts.push_back({box.box, {rank_of(manifest.files[box.file].name)}});
  }
  return parts;
}

std::vector<std::string> telling_tensors(const ckpt::Manifest& manifest,
                                         const std::optional<ModelSpec>& model) {
  std::vector<std::string> names;
  if (!model) {
    for (std::size_t i = 0; i < std::min<std::size_t>(6, manifest.tensors.size()); ++i)
      names.push_back(manifest.tensors[i].name);
    return names;
  }
  const std::set<Role> telling{Role::embed_tokens, Role::input_norm, Role::q,   Role::k,
                               Role::gate,         Role::up,         Role::down};
  for (const TensorSpec& t : model->tensors) {
    if (t.layer() <= 0 && telling.contains(t.role)) names.push_back(t.name);
  }
  return names;
}

std::uint32_t row_of(const ckpt::Manifest& manifest, const std::string& name) {
  std::vector<std::string> known;
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i) {
    if (manifest.tensors[i].name == name) return i;
    known.push_back(manifest.tensors[i].name);
  }
  throw Error(ErrorCode::usage, fmt::format("tensor '{}': is not in the checkpoint; the nearest that is: {}",
                                            name, known.empty() ? "none" : ckpt::nearest(name, known)));
}

/// Another program's checkpoint is drawn as it is stored.
bool describes_transformer(const ckpt::Manifest& manifest) {
  try {
    config_of(manifest);
    layout_of(manifest);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string heading(const char* when, const Layout& layout) {
  return fmt::format("{}: {}, {} rank{}", when, layout.string(), layout.ranks(),
                     layout.ranks() == 1 ? "" : "s");
}

}  // namespace

std::vector<DrawnSide> drawn_sides(const ModelSpec& model, const Layout& layout,
                                   const std::vector<std::uint32_t>& tensors) {
  std::map<std::uint32_t, std::size_t> side_of;
  for (std::size_t i = 0; i < tensors.size(); ++i) side_of[tensors[i]] = i;
  std::vector<DrawnSide> sides(tensors.size());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (const Placed& p : placement(model, layout, rank)) {
      const auto at = side_of.find(p.tensor);
      if (at == side_of.end() || p.holds.empty()) continue;
      DrawnSide& side = sides[at->second];
      const auto same = std::find_if(side.holds.begin(), side.holds.end(),
                                     [&](const DrawnPart& part) { return part.box == p.holds; });
      if (same == side.holds.end()) {
        side.holds.push_back({p.holds, {rank}});
      } else {
        same->ranks.push_back(rank);
      }
      if (!p.writes.empty()) side.writes.push_back({p.writes, {rank}});
    }
  }
  for (DrawnSide& side : sides) {
    std::sort(side.holds.begin(), side.holds.end(), [](const DrawnPart& a, const DrawnPart& b) {
      return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(), b.box.offset.begin(),
                                          b.box.offset.end());
    });
  }
  return sides;
}

Drawing draw_checkpoint(const ckpt::Manifest& manifest, const std::string& title,
                        const std::optional<Layout>& target, const std::vector<std::string>& names) {
  std::optional<ModelSpec> model;
  std::optional<Layout> source;
  if (describes_transformer(manifest)) {
    model = model_of(manifest);
    source = layout_of(manifest);
    if (!is_legal(*source, *model)) {
      throw Error(ErrorCode::damaged,
                  fmt::format("checkpoint: names the layout {}, which its model does not allow; "
                              "`shardwright verify` checks the rest",
                              source->string()));
    }
  }
  if (target) {
    if (!model) {
      throw Error(ErrorCode::usage,
                  "checkpoint: says no model, so other layouts of it are not known; draw it without one");
    }
    check_layout(*target, *model);
  }

  Drawing drawing;
  drawing.title = title;
  drawing.columns.push_back(source ? heading("before", *source) : "as stored");
  if (target) drawing.columns.push_back(heading("after", *target));
  std::vector<std::uint32_t> rows;  // of the model
  for (const std::string& name : names.empty() ? telling_tensors(manifest, model) : names) {
    const std::uint32_t stored = row_of(manifest, name);
    DrawnTensor& tensor = drawing.tensors.emplace_back();
    tensor.name = name;
    tensor.shape = manifest.tensors[stored].shape;
    tensor.sides.push_back({{}, stored_parts(manifest, stored)});
    if (model) rows.push_back(static_cast<std::uint32_t>(model->find(name)));
  }
  if (source) {
    const std::vector<DrawnSide> held = drawn_sides(*model, *source, rows);
    for (std::size_t i = 0; i < held.size(); ++i) drawing.tensors[i].sides[0].holds = held[i].holds;
  }
  if (target) {
    const std::vector<DrawnSide> after = drawn_sides(*model, *target, rows);
    for (std::size_t i = 0; i < after.size(); ++i) drawing.tensors[i].sides.push_back(after[i]);
  }
  return drawing;
}

}  // namespace shardwright::reshard
