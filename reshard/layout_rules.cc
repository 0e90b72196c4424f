// Which layouts are legal, what to suggest instead of one that is not, and what to go on with after a loss of
// ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "ckpt/error.h"
#include "reshard/layout.h"

namespace shardwright::reshard {
namespace {

bool tp_fits(std::int64_t tp, const ModelConfig& m) {
  return m.heads % tp == 0 && (m.kv_heads % tp == 0 || tp % m.kv_heads == 0);
}

bool dp_fits(std::int64_t dp, const BatchShape& b) { return b.global_batch % (b.micro_batch * dp) == 0; }

// "1, 2, 4" of the values up to `limit` that pass; at most the 16 nearest to `asked`, in order.
template <typename Fits>
std::string legal_values(std::int64_t asked, std::int64_t limit, const Fits& fits) {
  std::vector<std::int64_t> values;
  for (std::int64_t v = 1; v <= limit; ++v) {
    if (fits(v)) values.push_back(v);
  }
  constexpr std::size_t kShown = 16;
  if (values.size() > kShown) {
    std::stable_sort(values.begin(), values.end(), [&](std::int64_t a, std::int64_t b) {
      return std::abs(a - asked) < std::abs(b - asked);
    });
    values.resize(kShown);
    std::sort(values.begin(), values.end());
  }
  return fmt::format("{}", fmt::join(values, ", "));
}

// Divisors stay below this for any model or batch; it bounds the search for suggestions.
constexpr std::int64_t kSuggested = kMaxRanks;

void check_tp(const Layout& l, const ModelConfig& m, std::vector<std::string>& broken) {
  if (tp_fits(l.tp, m)) return;
  const std::string wrong = m.heads % l.tp != 0
                                ? fmt::format("does not divide the {} heads", m.heads)
                                : fmt::format("and the {} KV heads do not divide each other", m.kv_heads);
  broken.push_back(fmt::format(
      "tp {}: {}; possible with {} heads and {} KV heads: {}", l.tp, wrong, m.heads, m.kv_heads,
      legal_values(l.tp, std::min(m.heads, kSuggested), [&](std::int64_t tp) { return tp_fits(tp, m); })));
}

void check_stages(const Layout& l, const ModelConfig& m, const std::optional<BatchShape>& batch,
                  std::vector<std::string>& broken) {
  const std::int64_t stages = std::int64_t{l.pp} * l.vpp;
  if (stages > m.layers) {
    broken.push_back(
        fmt::format("pp {}: {} stages (pp x vpp) are more than the {} layers; possible with vpp {}: 1 to {}",
                    l.pp, stages, m.layers, l.vpp, m.layers / l.vpp));
  }
  if (l.vpp > 1 && l.pp == 1) {
    broken.push_back(fmt::format("vpp {}: needs a pipeline and pp is 1; vpp 1, or pp of at least 2", l.vpp));
  }
  if (l.vpp > 1 && l.pp > 1 && batch && dp_fits(l.dp, *batch)) {
    const std::int64_t micro = micro_batches(l, *batch);
    if (micro % l.pp != 0) {
      broken.push_back(fmt::format(
          "vpp {}: interleaving needs micro-batches divisible by pp and there are {}; pp of {}, or vpp 1",
          l.vpp, micro, legal_values(l.pp, std::min(m.layers, kSuggested), [&](std::int64_t pp) {
            return micro % pp == 0;
          })));
    }
  }
  if (l.stages.empty()) return;
  if (static_cast<std::int64_t>(l.stages.size()) != stages) {
    broken.push_back(fmt::format("stages: {} numbers for {} stages (pp x vpp); one number a stage",
                                 l.stages.size(), stages));
    return;
  }
  const std::int64_t sum = std::accumulate(l.stages.begin(), l.stages.end(), std::int64_t{0});
  if (sum != m.layers) {
    broken.push_back(fmt::format("stages: sum to {} layers; the model has {}", sum, m.layers));
  }
  if (std::any_of(l.stages.begin(), l.stages.end(), [](int n) { return n < 1; })) {
    broken.push_back("stages: one has no layer; at least 1 layer in each");
  }
}

// `vpp` and `stages` of the old layout hold only where the new degrees let them.
std::optional<Layout> adapted(const Layout& old, const ModelSpec& model, const BatchShape& batch,
                              std::int64_t tp, std::int64_t pp, std::int64_t dp) {
  Layout l = old;
  l.tp = static_cast<int>(tp);
  l.pp = static_cast<int>(pp);
  l.dp = static_cast<int>(dp);
  for (const int vpp : {old.vpp, 1}) {
    l.vpp = vpp;
    l.stages = old.stages;
    if (static_cast<std::int64_t>(l.stages.size()) != pp * vpp) l.stages.clear();
    if (illegal(l, model, batch).empty()) return l;
  }
  return std::nullopt;
}

// 1 to `limit`, nearest to `old` first, of two equally near the smaller.
std::vector<std::int64_t> nearest_first(std::int64_t old, std::int64_t limit) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(limit));
  std::iota(values.begin(), values.end(), 1);
  std::stable_sort(values.begin(), values.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::abs(a - old) < std::abs(b - old); });
  return values;
}

}  // namespace

std::vector<std::string> illegal(const Layout& layout, const ModelSpec& model,
                                 const std::optional<BatchShape>& batch) {
  std::vector<std::string> broken;
  const auto degree = [&](const char* name, int value) {
    if (value < 1 || value > kMaxRanks) {
      broken.push_back(fmt::format("{} {}: out of range; 1 to {}", name, value, kMaxRanks));
    }
  };
  degree("tp", layout.tp);
  degree("pp", layout.pp);
  degree("dp", layout.dp);
  degree("vpp", layout.vpp);
  if (layout.zero < 0 || layout.zero > 3) {
    broken.push_back(fmt::format("zero {}: no such stage; 0 to 3", layout.zero));
  }
  if (!is_rank_order(layout.order)) {
    broken.push_back(fmt::format(
        "rank order '{}': does not name each axis once; t, d and p from fastest to slowest, one of "
        "tdp, tpd, dtp, dpt, ptd, pdt",
        layout.order));
  }
  if (batch && (batch->global_batch < 1 || batch->micro_batch < 1)) {
    broken.push_back("global_batch and micro_batch: below 1; at least 1");
  }
  if (!broken.empty()) return broken;

  check_tp(layout, model.config, broken);
  check_stages(layout, model.config, batch, broken);
  if (static_cast<double>(layout.tp) * layout.pp * layout.dp > kMaxRanks) {
    broken.push_back(fmt::format("{}: is more than {} ranks; fewer", layout.string(), kMaxRanks));
  }
  if (batch && !dp_fits(layout.dp, *batch)) {
    const auto fits = [&](std::int64_t dp) { return dp_fits(dp, *batch); };
    const std::string possible =
        legal_values(layout.dp, std::min(batch->global_batch / batch->micro_batch, kSuggested), fits);
    broken.push_back(
        fmt::format("dp {}: micro_batch {} x dp does not divide global_batch {}; possible dp: {}", layout.dp,
                    batch->micro_batch, batch->global_batch,
                    possible.empty() ? "none, choose another micro_batch" : possible));
  }
  for (std::string& message : broken) message = fmt::format("layout {}: {}", layout.string(), message);
  return broken;
}

void check_layout(const Layout& layout, const ModelSpec& model, const std::optional<BatchShape>& batch) {
  const std::vector<std::string> broken = illegal(layout, model, batch);
  if (!broken.empty()) throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(broken, "\n")));
}

std::int64_t micro_batches(const Layout& layout, const BatchShape& batch) {
  return batch.global_batch / (batch.micro_batch * layout.dp);
}

Layout with_ranks(Layout layout, int ranks) {
  const std::int64_t others = std::int64_t{layout.tp} * layout.pp;
  if (layout.dp == 0) {
    if (ranks == 0) {
      layout.dp = 1;
      return layout;
    }
    if (ranks % others != 0) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} ranks: tp {} x pp {} does not divide them; a multiple of {}", ranks,
                              layout.tp, layout.pp, others));
    }
    layout.dp = static_cast<int>(ranks / others);
    return layout;
  }
  if (ranks != 0 && others * layout.dp != ranks) {
    throw Error(ErrorCode::usage,
                fmt::format("{} ranks: layout {} needs {}; that many, or dp = 0 to fill what is given", ranks,
                            layout.string(), others * layout.dp));
  }
  return layout;
}

std::optional<Layout> shrink(const Layout& old, const ModelSpec& model, const BatchShape& batch,
                             int remaining, int min_ranks) {
  const ModelConfig& m = model.config;
  for (int ranks = std::min(remaining, old.ranks()); ranks >= std::max(min_ranks, 1); --ranks) {
    // nearest_first puts the old tp and pp at the front, so the order of this search is the order of
    // preference.
    for (const std::int64_t tp : nearest_first(old.tp, std::min<std::int64_t>(m.heads, ranks))) {
      if (ranks % tp != 0 || !tp_fits(tp, m)) continue;
      // Losing ranks is no reason for a longer pipeline than the run was given.
      for (const std::int64_t pp : nearest_first(old.pp, std::min<std::int64_t>(old.pp, ranks / tp))) {
        if (ranks / tp % pp != 0) continue;
        if (const auto layout = adapted(old, model, batch, tp, pp, ranks / tp / pp)) return layout;
      }
    }
  }
  return std::nullopt;
}

}  // namespace shardwright::reshard
