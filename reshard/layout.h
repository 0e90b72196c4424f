// A layout: the degrees of parallelism of a run. Together with reshard/placement.* this is the only code that
// turns ranks, coordinates and degrees into anything else; everyone else asks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/model_spec.h"

namespace shardwright::reshard {

/// Ranks of a checkpoint have five digits in its file names; no layout may have more.
inline constexpr int kMaxRanks = 100000;

struct Layout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int zero = 0;
  int vpp = 1;
  // Layers per (virtual) stage in model order, pp*vpp numbers; empty: spread evenly.
  std::vector<int> stages = {};
  std::string order = "tdp";  // which axis counts fastest to slowest among the ranks: t, d and p, each once
  friend bool operator==(const Layout&, const Layout&) = default;

  int ranks() const { return tp * pp * dp; }
  /// Runs of layers that the model is cut into: the least layers that it can have.
  int stage_count() const { return pp * vpp; }
  /// The same with dp = 0 (what the rank count leaves) as 1, and whatever the degrees are, but at most
  /// kMaxRanks: of what a configuration says and nobody has checked.
  int least_ranks() const;
  /// "t2p1d2z1", with v only if > 1.
  std::string string() const;
};

enum class Axis : std::uint8_t { tp, pp, dp };

struct Coordinates {
  int tp = 0;
  int pp = 0;
  int dp = 0;
};
Coordinates coordinates(const Layout& layout, int rank);
int rank_at(const Layout& layout, const Coordinates& at);
/// The ranks that differ from `rank` along one axis only, in order along it, `rank` included.
std::vector<int> axis_group(const Layout& layout, int rank, Axis axis);
/// Coordinate of `rank` along an axis, and the number of ranks along it.
int axis_index(const Layout& layout, int rank, Axis axis);
int axis_size(const Layout& layout, Axis axis);

/// True for t, d and p, each once.
bool is_rank_order(std::string_view order);

/// Letters in any order, a missing one is 1 (z: 0); Error(usage) names the mistake.
Layout parse_layout(std::string_view text);

/// Layers of each (virtual) stage: `stages` if given, else layers spread so that the first (layers mod
/// stages) stages have one more.
std::vector<int> stage_layers(const Layout& layout, const ModelSpec& model);

/// A run of layers that one rank computes in one go.
struct StageLayers {
  int stage = 0;  // in model order, 0 to pp * vpp - 1
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  bool first = false;  // of the whole model: the embedding comes before it
  bool last = false;   // of the whole model: the final norm and the head come after it
};
/// The (virtual) pipeline stages that `rank` runs, in model order: stage s runs on pipeline rank s mod pp.
std::vector<StageLayers> virtual_stages(const Layout& layout, const ModelSpec& model, int rank);

/// JSON object of the contract: {"tp","pp","dp","zero","vpp","stages","order","string"}, and back
/// (Error(damaged) for a bad one; no "order" is "tdp"). Going back, stages that are just the even spread
/// become empty, so that a change of pp spreads them anew.
std::string to_json(const Layout& layout, const ModelSpec& model);
Layout parse_layout_json(const std::string& json);

/// What training adds to the rules of a layout.
struct BatchShape {
  std::int64_t global_batch = 0;  // sequences
  std::int64_t micro_batch = 0;
};

/// True if every rule of a layout holds; with `batch`, also training's (micro_batch * dp divides
/// global_batch, and with vpp > 1 pp divides the micro-batches). As illegal(...).empty(), without composing
/// messages.
bool is_legal(const Layout& layout, const ModelSpec& model, const std::optional<BatchShape>& batch = {});

/// One line per broken rule, each naming the rule, the legal values, and the nearest legal layouts; empty if
/// legal.
std::vector<std::string> illegal(const Layout& layout, const ModelSpec& model,
                                 const std::optional<BatchShape>& batch = {});
/// Throws Error(usage) with all of them, a line each.
void check_layout(const Layout& layout, const ModelSpec& model, const std::optional<BatchShape>& batch = {});

/// Up to `most` legal layouts near `layout`, the nearest (by the ratios of the degrees) first. All have one
/// rank count: the layout's own if any layout of that many ranks is legal, else the largest below it. ZeRO
/// stage and rank order stay, vpp and `stages` where they can. Degrees must be at least 1; none if no dp
/// suits the batch. Takes milliseconds at any size.
std::vector<Layout> nearest_legal(const Layout& layout, const ModelSpec& model,
                                  const std::optional<BatchShape>& batch = {}, std::size_t most = 3);

/// Every layout of exactly `ranks` ranks that is legal in training: all degrees, ZeRO stages up to `max_zero`
/// (only 0 without data parallelism), spread stages, and interleaving where it divides the layers, up to 8.
/// In a fixed order, the stages of ZeRO last. Takes milliseconds at any size.
std::vector<Layout> legal_layouts(const ModelSpec& model, const BatchShape& batch, int ranks, int max_zero);

/// Micro-batches that each rank runs per step.
std::int64_t micro_batches(const Layout& layout, const BatchShape& batch);

/// dp = 0 in the configuration: what the rank count leaves. Error(usage) if the degrees do not make `ranks`.
Layout with_ranks(Layout layout, int ranks);

/// The layout to go on with on at most `remaining` ranks after `old` lost some: the largest rank count with a
/// legal layout; among those same tp and pp with less dp, then same tp with less pp (nearest the old, smaller
/// first), then the smallest change of tp. `stages` is kept only if its length fits. Nothing if no layout of
/// at least `min_ranks` is legal.
std::optional<Layout> shrink(const Layout& old, const ModelSpec& model, const BatchShape& batch,
                             int remaining, int min_ranks);

}  // namespace shardwright::reshard
