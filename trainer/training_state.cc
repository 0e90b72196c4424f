#include "trainer/training_state.h"

#include <nlohmann/json.hpp>

#include "ckpt/error.h"

namespace shardwright::trainer {

std::string to_json(const TrainingState& state) {
  nlohmann::ordered_json json;
  json["step"] = state.step;
  json["samples"] = state.samples;
  json["seed"] = state.seed;
  json["loss_scale"] = state.loss_scale;
  json["skipped_steps"] = state.skipped_steps;
  json["dtype"] = state.dtype;
  json["loss"] = state.loss ? nlohmann::ordered_json(*state.loss) : nlohmann::ordered_json(nullptr);
  json["global_batch"] = state.global_batch;
  json["data"] = state.data;
  return json.dump();
}

TrainingState parse_training_json(const std::string& json) {
  try {
    const nlohmann::json object = nlohmann::json::parse(json);
    TrainingState state;
    state.step = object.at("step").get<std::int64_t>();
    state.samples = object.at("samples").get<std::int64_t>();
    state.seed = object.at("seed").get<std::uint64_t>();
    state.loss_scale = object.value("loss_scale", state.loss_scale);
    state.skipped_steps = object.value("skipped_steps", state.skipped_steps);
    state.dtype = object.value("dtype", state.dtype);
    if (object.contains("loss") && object["loss"].is_number()) state.loss = object["loss"].get<double>();
    state.global_batch = object.value("global_batch", state.global_batch);
    state.data = object.value("data", state.data);
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::damaged, std::string("training state: ") + error.what() +
                                        "; an object with step, samples and seed is right");
  }
}

}  // namespace shardwright::trainer
