#include "trainer/training_state.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "ckpt/error.h"
#include "ckpt/record_fields.h"
#include "trainer/records.h"

namespace shardwright::trainer {
namespace {

std::int64_t count(const nlohmann::json& object, const char* field) {
  const std::uint64_t value = ckpt::number_field(object, field);
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Error(ErrorCode::damaged, fmt::format("field '{}' is too large for a count", field));
  return static_cast<std::int64_t>(value);
}

std::optional<double> loss_of(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return kInfinity;
  if (value == "-Infinity") return -kInfinity;
  return std::nullopt;
}

}  // namespace

std::string to_json(const TrainingState& state) {
  nlohmann::ordered_json json;
  json["step"] = state.step;
  json["samples"] = state.samples;
  json["seed"] = state.seed;
  json["loss_scale"] = state.loss_scale;
  json["loss_scale_steps"] = state.loss_scale_steps;
  json["skipped_steps"] = state.skipped_steps;
  json["dtype"] = state.dtype;
  json["loss"] = nullptr;
  if (state.loss) json["loss"] = *state.loss;
  // JSON has no NaN: json_number() gives the contract's texts for what is not finite.
  if (state.loss && !std::isfinite(*state.loss))
    json["loss"] = nlohmann::ordered_json::parse(json_number(*state.loss));
  json["global_batch"] = state.global_batch;
  json["data"] = state.data;
  return json.dump();
}

TrainingState parse_training_json(const std::string& json) {
  const nlohmann::json object = ckpt::parse_object(json);
  const auto has = [&](const char* field) { return object.contains(field); };
  TrainingState state;
  state.step = count(object, "step");
  state.samples = count(object, "samples");
  state.seed = ckpt::number_field(object, "seed");
  if (has("loss_scale")) state.loss_scale = ckpt::real_field(object, "loss_scale");
  if (has("loss_scale_steps")) state.loss_scale_steps = count(object, "loss_scale_steps");
  if (has("skipped_steps")) state.skipped_steps = count(object, "skipped_steps");
  if (has("dtype")) state.dtype = ckpt::text_field(object, "dtype");
  if (has("loss")) state.loss = loss_of(object["loss"]);
  if (has("global_batch")) state.global_batch = count(object, "global_batch");
  if (has("data")) state.data = ckpt::text_field(object, "data");
  return state;
}

TrainingState training_state_of(const ckpt::Manifest& manifest, const std::string& path) {
  try {
    return parse_training_json(manifest.description.training);
  } catch (const Error& error) {
    throw Error(
        ErrorCode::mismatch,
        fmt::format("{}: has no training state to go on from ({}); one that `shardwright train` wrote", path,
                    error.what()),
        path);
  }
}

}  // namespace shardwright::trainer
