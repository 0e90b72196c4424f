#include "trainer/compatibility.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/json_depth.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"
#include "reshard/reshard.h"

namespace shardwright::trainer {
namespace {

constexpr std::array<const char*, 4> kFreeSections = {"optim", "checkpoint", "health", "elastic"};
constexpr std::array<const char*, 4> kFreeTrainKeys = {"steps", "dtype", "loss_scale", "loss_scale_window"};
// Of [parallel], what a layout's string does not say.
constexpr std::array<const char*, 4> kFreeParallelKeys = {"stages", "rank_order", "schedule",
                                                          "sequence_parallel"};

nlohmann::json parse(const std::string& text) {
  // A configuration of another program may be anything: then there is nothing to compare.
  if (ckpt::nests_too_deep(text)) return nlohmann::json::object();
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() ? json : nlohmann::json::object();
}

// A place in a checkpoint directory is no property of a run.
bool is_place(const std::string& section, const std::string& key) {
  return section == "checkpoint" && key == "dir";
}

void compare_section(const nlohmann::json& stored, const nlohmann::json& here, const std::string& section,
                     const std::vector<std::string>& keys, std::vector<Difference>& differences) {
  if (!stored.contains(section) || !here.contains(section)) return;
  for (const auto& [key, value] : here.at(section).items()) {
    if (!keys.empty() && std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
    if (is_place(section, key) || !stored.at(section).contains(key) || stored.at(section).at(key) == value)
      continue;
    differences.push_back({section + "." + key, stored.at(section).at(key).dump(), value.dump()});
  }
}

std::string layout_string(const std::string& json) {
  const nlohmann::json object = parse(json);
  const auto string = object.find("string");
  return string != object.end() && string->is_string() ? string->get<std::string>() : "";
}

bool is_weights_only(const ckpt::Manifest& stored) {
  return std::none_of(stored.states.begin(), stored.states.end(),
                      [](const ckpt::StateEntry& s) { return s.kind == reshard::kExpAvg; });
}

}  // namespace

std::string Difference::line() const {
  return fmt::format("{}: {} in the checkpoint, {} here", field, stored, here);
}

Comparison compare(const ckpt::Manifest& stored, const std::string& path, const Config& config,
                   const reshard::ModelSpec& model, const TrainingState& here) {
  const std::vector<std::string> fields =
      reshard::differing_fields(reshard::config_of(stored, path), model.config);
  if (!fields.empty())
    throw Error(ErrorCode::mismatch,
                fmt::format("[model]: not the model of {} ({}); the same values, or another run "
                            "directory",
                            path, fmt::join(fields, "; ")),
                path);
  check_types(stored, path, false);
  Comparison result;
  result.weights_only = is_weights_only(stored);

  const TrainingState then = training_state_of(stored, path);
  if (then.seed != here.seed)
    result.refused.push_back({"train.seed", std::to_string(then.seed), std::to_string(here.seed)});
  if (then.global_batch != 0 && then.global_batch != here.global_batch)
    result.refused.push_back(
        {"train.global_batch", std::to_string(then.global_batch), std::to_string(here.global_batch)});
  if (!then.data.empty() && then.data != here.data)
    result.refused.push_back({"data.train", then.data, here.data});

  const std::string layout = layout_string(stored.description.layout);
  if (!layout.empty() && layout != config.parallel.layout.string())
    result.permitted.push_back({"layout", layout, config.parallel.layout.string()});
  const nlohmann::json then_config = parse(stored.description.config);
  const nlohmann::json now_config = parse(to_json(config));
  compare_section(then_config, now_config, "train", {kFreeTrainKeys.begin(), kFreeTrainKeys.end()},
                  result.permitted);
  compare_section(then_config, now_config, "parallel", {kFreeParallelKeys.begin(), kFreeParallelKeys.end()},
                  result.permitted);
  for (const char* section : kFreeSections)
    compare_section(then_config, now_config, section, {}, result.permitted);
  return result;
}

void check_types(const ckpt::Manifest& stored, const std::string& path, bool weights_only) {
  std::map<std::string, std::string_view> others;  // types by kind
  for (const ckpt::StateEntry& state : stored.states)
    if (state.dtype != ckpt::DType::f32 && (!weights_only || state.kind == reshard::kParam))
      others.emplace(state.kind, ckpt::name(state.dtype));
  if (others.empty()) return;
  std::vector<std::string> found, casts;
  for (const auto& [kind, type] : others) {
    found.push_back(fmt::format("{} is {}", kind, type));
    casts.push_back(fmt::format("--cast {}=fp32", kind));
  }
  throw Error(
      ErrorCode::mismatch,
      fmt::format("{0}: its {1}, and training goes on from f32; `shardwright reshard {0} DST {2}` makes one",
                  path, fmt::join(found, " and its "), fmt::join(casts, " ")),
      path);
}

void refuse_changes(const Comparison& comparison, const std::string& path) {
  std::vector<std::string> lines;
  for (const Difference& difference : comparison.refused) lines.push_back(difference.line());
  if (comparison.weights_only)
    lines.push_back("the checkpoint holds weights only, and moments would start at zero");
  if (lines.empty()) return;
  throw Error(ErrorCode::mismatch,
              fmt::format("{}: {}; the same values, or --accept-changes to go on all the same", path,
                          fmt::join(lines, "; ")),
              path);
}

}  // namespace shardwright::trainer
