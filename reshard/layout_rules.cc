// Which layouts are legal, and what is said about one that is not.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "ckpt/error.h"
#include "ckpt/nearest.h"
#include "reshard/layout.h"

namespace shardwright::reshard {
namespace {

const std::vector<std::string>& rank_orders() {
  static const std::vector<std::string> orders{"tdp", "tpd", "dtp", "dpt", "ptd", "pdt"};
  return orders;
}

bool degree_fits(std::int64_t degree) { return degree >= 1 && degree <= kMaxRanks; }

bool count_fits(const Layout& l) { return std::int64_t{l.tp} * l.pp <= kMaxRanks / l.dp; }

bool tp_fits(std::int64_t tp, const ModelConfig& m) {
  return m.heads % tp == 0 && (m.kv_heads % tp == 0 || tp % m.kv_heads == 0);
}

bool dp_fits(std::int64_t dp, const BatchShape& b) {
  return b.global_batch % b.micro_batch == 0 && b.global_batch / b.micro_batch % dp == 0;
}

bool depth_fits(const Layout& l, const ModelConfig& m) { return std::int64_t{l.pp} * l.vpp <= m.layers; }

bool interleaving_fits(const Layout& l, const std::optional<BatchShape>& batch) {
  return l.vpp == 1 || l.pp == 1 || !batch || !dp_fits(l.dp, *batch) || micro_batches(l, *batch) % l.pp == 0;
}

bool stages_fit(const Layout& l, const ModelConfig& m) {
  return l.stages.empty() || (static_cast<std::int64_t>(l.stages.size()) == std::int64_t{l.pp} * l.vpp &&
                              std::all_of(l.stages.begin(), l.stages.end(), [](int n) { return n >= 1; }) &&
                              std::accumulate(l.stages.begin(), l.stages.end(), std::int64_t{0}) == m.layers);
}

// "1, 2, 4" of the values up to `limit` that pass; at most the 16 nearest to `asked`, in order.
template <typename Fits>
std::string legal_values(std::int64_t asked, std::int64_t limit, const Fits& fits) {
  std::vector<std::int64_t> values;
  for (std::int64_t v = 1; v <= std::min<std::int64_t>(limit, kMaxRanks); ++v) {
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

void check_tp(const Layout& l, const ModelConfig& m, std::vector<std::string>& broken) {
  if (tp_fits(l.tp, m)) return;
  const std::string wrong = m.heads % l.tp != 0
                                ? fmt::format("does not divide the {} heads", m.heads)
                                : fmt::format("and the {} KV heads do not divide each other", m.kv_heads);
  broken.push_back(fmt::format("tp {}: {}; possible with {} heads and {} KV heads: {}", l.tp, wrong, m.heads,
                               m.kv_heads,
                               legal_values(l.tp, m.heads, [&](std::int64_t tp) { return tp_fits(tp, m); })));
}

void check_pipeline(const Layout& l, const ModelConfig& m, const std::optional<BatchShape>& batch,
                    std::vector<std::string>& broken) {
  if (!depth_fits(l, m)) {
    broken.push_back(
        l.vpp == 1
            ? fmt::format("pp {}: is more than the {} layers; possible pp: 1 to {}", l.pp, m.layers, m.layers)
            : fmt::format("pp {} x vpp {}: {} stages are more than the {} layers; pp x vpp of at "
                          "most {}",
                          l.pp, l.vpp, std::int64_t{l.pp} * l.vpp, m.layers, m.layers));
  }
  if (l.vpp > 1 && l.pp == 1) {
    broken.push_back(fmt::format("vpp {}: needs a pipeline and pp is 1; vpp 1, or pp of at least 2", l.vpp));
  }
  if (!interleaving_fits(l, batch)) {
    const std::int64_t micro = micro_batches(l, *batch);
    broken.push_back(fmt::format(
        "vpp {}: interleaving needs micro-batches divisible by pp and there are {}; pp of {}, or vpp 1",
        l.vpp, micro, legal_values(l.pp, std::min(m.layers, micro), [&](std::int64_t pp) {
          return pp > 1 && micro % pp == 0;
        })));
  }
}

// Stages near the ones given: each with a layer, and all layers in them.
std::vector<int> nearest_stages(const Layout& l, const ModelSpec& model) {
  Layout even = l;
  even.stages.clear();
  std::vector<int> stages = stage_layers(even, model);
  constexpr std::int64_t kShifted = 64;  // layers moved one by one
  if (l.stages.size() != stages.size()) return stages;
  std::vector<int> near = l.stages;
  std::int64_t missing = model.config.layers;
  for (int& n : near) {
    n = std::max(n, 1);
    missing -= n;
  }
  if (std::abs(missing) > kShifted) return stages;
  for (; missing > 0; --missing) ++*std::min_element(near.begin(), near.end());
  for (; missing < 0; ++missing) --*std::max_element(near.begin(), near.end());
  return near;
}

void check_stages(const Layout& l, const ModelSpec& model, std::vector<std::string>& broken) {
  if (stages_fit(l, model.config)) return;
  const std::int64_t stages = std::int64_t{l.pp} * l.vpp;
  const std::int64_t sum = std::accumulate(l.stages.begin(), l.stages.end(), std::int64_t{0});
  std::string wrong, right;
  if (static_cast<std::int64_t>(l.stages.size()) != stages) {
    wrong = fmt::format("{} numbers for {} stages (pp x vpp)", l.stages.size(), stages);
    right = "one number a stage";
  } else if (std::any_of(l.stages.begin(), l.stages.end(), [](int n) { return n < 1; })) {
    wrong = "one has no layer";
    right = "at least 1 layer in each";
  } else {
    wrong = fmt::format("sum to {} layers", sum);
    right = fmt::format("the model has {}", model.config.layers);
  }
  constexpr std::int64_t kShown = 64;
  if (depth_fits(l, model.config)) {
    right += stages <= kShown ? fmt::format(", as in {}", fmt::join(nearest_stages(l, model), ","))
                              : ", or none to spread the layers evenly";
  }
  broken.push_back(fmt::format("stages: {}; {}", wrong, right));
}

void check_batch(const Layout& l, const BatchShape& batch, std::vector<std::string>& broken) {
  if (dp_fits(l.dp, batch)) return;
  if (batch.global_batch % batch.micro_batch != 0) {
    broken.push_back(fmt::format(
        "dp {}: micro_batch {} x dp does not divide global_batch {}; no dp is possible, choose another "
        "micro_batch: {}",
        l.dp, batch.micro_batch, batch.global_batch,
        legal_values(batch.micro_batch, batch.global_batch,
                     [&](std::int64_t micro) { return batch.global_batch % micro == 0; })));
    return;
  }
  broken.push_back(fmt::format("dp {}: micro_batch {} x dp does not divide global_batch {}; possible dp: {}",
                               l.dp, batch.micro_batch, batch.global_batch,
                               legal_values(l.dp, batch.global_batch / batch.micro_batch,
                                            [&](std::int64_t dp) { return dp_fits(dp, batch); })));
}

// "; nearest legal layouts of 6 ranks: t2p1d3z0, t1p1d6z0"
std::string nearest_text(const Layout& wanted, const ModelSpec& model,
                         const std::optional<BatchShape>& batch) {
  const std::vector<Layout> near = nearest_legal(wanted, model, batch);
  if (near.empty()) return "";
  std::vector<std::string> texts;
  for (const Layout& l : near) texts.push_back(l.string());
  const std::int64_t asked = std::int64_t{wanted.tp} * wanted.pp * wanted.dp;
  const int ranks = near.front().ranks();
  const std::string ranks_text = ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks);
  const char* plural = near.size() == 1 ? "" : "s";
  if (asked == ranks) {
    return fmt::format("; nearest legal layout{} of {}: {}", plural, ranks_text, fmt::join(texts, ", "));
  }
  return fmt::format("; none of {} ranks is legal, nearest legal layout{} of {}: {}", asked, plural,
                     ranks_text, fmt::join(texts, ", "));
}

}  // namespace

bool is_legal(const Layout& layout, const ModelSpec& model, const std::optional<BatchShape>& batch) {
  const Layout& l = layout;
  const ModelConfig& m = model.config;
  return degree_fits(l.tp) && degree_fits(l.pp) && degree_fits(l.dp) && degree_fits(l.vpp) && l.zero >= 0 &&
         l.zero <= 3 && is_rank_order(l.order) && count_fits(l) && tp_fits(l.tp, m) && depth_fits(l, m) &&
         (l.vpp == 1 || l.pp > 1) && stages_fit(l, m) &&
         (!batch || (batch->global_batch >= 1 && batch->micro_batch >= 1 && dp_fits(l.dp, *batch) &&
                     interleaving_fits(l, batch)));
}

std::vector<std::string> illegal(const Layout& layout, const ModelSpec& model,
                                 const std::optional<BatchShape>& batch) {
  std::vector<std::string> broken;
  if (is_legal(layout, model, batch)) return broken;
  const auto degree = [&](const char* name, int value) {
    if (!degree_fits(value)) {
      broken.push_back(fmt::format("{} {}: out of range; 1 to {}", name, value, kMaxRanks));
    }
  };
  degree("tp", layout.tp);
  degree("pp", layout.pp);
  degree("dp", layout.dp);
  degree("vpp", layout.vpp);
  if (batch && (batch->global_batch < 1 || batch->micro_batch < 1)) {
    broken.push_back("global_batch and micro_batch: below 1; at least 1");
  }
  if (!broken.empty()) return broken;  // the other rules have nothing to go by

  if (layout.zero < 0 || layout.zero > 3) {
    broken.push_back(fmt::format("zero {}: no such stage; 0 to 3", layout.zero));
  }
  if (!is_rank_order(layout.order)) {
    broken.push_back(fmt::format(
        "rank order '{}': does not name t, d and p once each; one of {} (fastest axis first), nearest: {}",
        layout.order, fmt::join(rank_orders(), ", "), ckpt::nearest(layout.order, rank_orders())));
  }
  check_tp(layout, model.config, broken);
  check_pipeline(layout, model.config, batch, broken);
  check_stages(layout, model, broken);
  if (batch) check_batch(layout, *batch, broken);
  if (!count_fits(layout)) {
    broken.push_back(fmt::format("tp x pp x dp: is more than {} ranks; fewer", kMaxRanks));
  }
  const std::string nearest = nearest_text(layout, model, batch);
  for (std::string& message : broken)
    message = fmt::format("layout {}: {}{}", layout.string(), message, nearest);
  return broken;
}

void check_layout(const Layout& layout, const ModelSpec& model, const std::optional<BatchShape>& batch) {
  const std::vector<std::string> broken = illegal(layout, model, batch);
  if (!broken.empty()) throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(broken, "\n")));
}

std::int64_t micro_batches(const Layout& layout, const BatchShape& batch) {
  return batch.global_batch / batch.micro_batch / layout.dp;
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

}  // namespace shardwright::reshard
