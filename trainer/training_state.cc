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
  try {
    const nlohmann::json object = nlohmann::json::parse(json);
    TrainingState state;
    state.step = count(object, "step");
    state.samples = count(object, "samples");
    state.seed = ckpt::number_field(object, "seed");
    state.loss_scale = object.value("loss_scale", state.loss_scale);
    state.skipped_steps = object.value("skipped_steps", state.skipped_steps);
    state.dtype = object.value("dtype", state.dtype);
    if (object.contains("loss")) state.loss = loss_of(object["loss"]);
    state.global_batch = object.value("global_batch", state.global_batch);
    state.data = object.value("data", state.data);
    return state;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::damaged, std::string("training state: ") + error.what() +
                                        "; an object with step, samples and seed is right");
  }
}

}  // namespace shardwright::trainer
