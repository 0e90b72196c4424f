// Which legal layout to take instead: near one that is not legal, or on the ranks that a loss left.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "reshard/layout.h"

namespace shardwright::reshard {
namespace {

// The tensor parallel degrees up to `limit` that the model allows.
std::vector<std::int64_t> legal_tp(const ModelSpec& model, std::int64_t limit) {
  std::vector<std::int64_t> degrees;
  Layout l;
  for (l.tp = 1; l.tp <= std::min(model.config.heads, limit); ++l.tp) {
    if (is_legal(l, model)) degrees.push_back(l.tp);
  }
  return degrees;
}

// The data parallel degrees up to `limit` that the batch allows.
std::vector<std::int64_t> legal_dp(const ModelSpec& model, const std::optional<BatchShape>& batch,
                                   std::int64_t limit) {
  std::vector<std::int64_t> degrees;
  Layout l;
  for (l.dp = 1; l.dp <= limit; ++l.dp) {
    if (is_legal(l, model, batch)) degrees.push_back(l.dp);
  }
  return degrees;
}

// The largest count up to `limit` that has a legal layout; 0 if none has. Without interleaving, any number of
// stages up to the layers goes with any other degrees.
std::int64_t largest_count(const std::vector<std::int64_t>& tps, const std::vector<std::int64_t>& dps,
                           std::int64_t layers, std::int64_t limit) {
  std::int64_t most = 0;
  for (const std::int64_t tp : tps) {
    for (const std::int64_t dp : dps) {
      if (tp * dp > limit) break;
      most = std::max(most, tp * dp * std::min(layers, limit / (tp * dp)));
    }
  }
  return most;
}

std::int64_t log_ratio(std::int64_t a, std::int64_t b) {
  return std::llround(1e6 * std::abs(std::log(static_cast<double>(a) / static_cast<double>(b))));
}

// Smaller is nearer: the ratios of all degrees together, then the number of degrees that differ, then whether
// the pipeline and then tp is what was asked for.
auto distance(const Layout& a, const Layout& b) {
  const std::int64_t tp = log_ratio(a.tp, b.tp);
  const std::int64_t pp = log_ratio(a.pp, b.pp);
  const std::int64_t dp = log_ratio(a.dp, b.dp);
  const std::int64_t vpp = log_ratio(a.vpp, b.vpp);
  const int differ = (tp != 0) + (pp != 0) + (dp != 0) + (vpp != 0);
  return std::tuple(tp + pp + dp + vpp, differ, pp, tp);
}

// `wanted` with other degrees; vpp and stages as they were where that is legal, else fewer and spread evenly.
std::optional<Layout> with_degrees(const Layout& wanted, const ModelSpec& model,
                                   const std::optional<BatchShape>& batch, std::int64_t tp, std::int64_t pp,
                                   std::int64_t dp) {
  Layout l = wanted;
  l.tp = static_cast<int>(tp);
  l.pp = static_cast<int>(pp);
  l.dp = static_cast<int>(dp);
  const auto deepest = static_cast<int>(std::min<std::int64_t>(wanted.vpp, model.config.layers / pp));
  for (const int vpp : {deepest, 1}) {
    l.vpp = vpp;
    l.stages = wanted.stages;
    if (is_legal(l, model, batch)) return l;
    l.stages.clear();
    if (is_legal(l, model, batch)) return l;
  }
  return std::nullopt;
}

// Nearest to `old` first, of two equally near the smaller. `values` ascend.
std::vector<std::int64_t> nearest_first(std::vector<std::int64_t> values, std::int64_t old) {
  std::stable_sort(values.begin(), values.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::abs(a - old) < std::abs(b - old); });
  return values;
}

}  // namespace

std::vector<Layout> nearest_legal(const Layout& layout, const ModelSpec& model,
                                  const std::optional<BatchShape>& batch, std::size_t most) {
  Layout wanted = layout;
  wanted.zero = std::clamp(wanted.zero, 0, 3);
  if (!is_rank_order(wanted.order)) wanted.order = Layout().order;
  const double asked = static_cast<double>(layout.tp) * layout.pp * layout.dp;
  const auto limit = static_cast<std::int64_t>(std::min<double>(asked, kMaxRanks));

  const std::vector<std::int64_t> tps = legal_tp(model, limit);
  const std::vector<std::int64_t> dps = legal_dp(model, batch, limit);
  const std::int64_t layers = model.config.layers;
  const std::int64_t count = largest_count(tps, dps, layers, limit);
  std::vector<Layout> found;
  for (const std::int64_t tp : tps) {
    if (count == 0 || count % tp != 0) continue;
    for (const std::int64_t dp : dps) {
      const std::int64_t pp = count / tp / dp;
      if (pp < 1) break;
      if (pp * tp * dp != count || pp > layers) continue;
      if (const auto l = with_degrees(wanted, model, batch, tp, pp, dp)) found.push_back(*l);
    }
  }
  most = std::min(most, found.size());
  std::partial_sort(
      found.begin(), found.begin() + static_cast<std::ptrdiff_t>(most), found.end(),
      [&](const Layout& a, const Layout& b) { return distance(a, wanted) < distance(b, wanted); });
  found.resize(most);
  return found;
}

std::vector<Layout> legal_layouts(const ModelSpec& model, const BatchShape& batch, int ranks, int max_zero) {
  constexpr int kMostInterleaved = 8;
  std::vector<Layout> found;
  for (const std::int64_t tp : legal_tp(model, ranks)) {
    if (ranks % tp != 0) continue;
    for (std::int64_t pp = 1; pp <= std::min(model.config.layers, ranks / tp); ++pp) {
      if (ranks / tp % pp != 0) continue;
      Layout l;
      l.tp = static_cast<int>(tp);
      l.pp = static_cast<int>(pp);
      l.dp = static_cast<int>(ranks / tp / pp);
      for (l.vpp = 1; l.vpp <= (l.pp > 1 ? kMostInterleaved : 1); ++l.vpp) {
        if (l.vpp > 1 && model.config.layers % (pp * l.vpp) != 0) continue;
        for (l.zero = 0; l.zero <= (l.dp > 1 ? max_zero : 0); ++l.zero) {
          if (is_legal(l, model, batch)) found.push_back(l);
        }
      }
    }
  }
  return found;
}

std::optional<Layout> shrink(const Layout& old, const ModelSpec& model, const BatchShape& batch,
                             int remaining, int min_ranks) {
  const std::vector<std::int64_t> tps = nearest_first(legal_tp(model, old.ranks()), old.tp);
  for (int ranks = std::min(remaining, old.ranks()); ranks >= std::max(min_ranks, 1); --ranks) {
    // The old tp and pp come first, so the order of this search is the order of preference.
    for (const std::int64_t tp : tps) {
      if (ranks % tp != 0) continue;
      // Losing ranks is no reason for a longer pipeline than the run was given.
      for (std::int64_t pp = std::min<std::int64_t>(old.pp, ranks / tp); pp >= 1; --pp) {
        if (ranks / tp % pp != 0) continue;
        if (const auto layout = with_degrees(old, model, batch, tp, pp, ranks / tp / pp)) return layout;
      }
    }
  }
  return std::nullopt;
}

}  // namespace shardwright::reshard
