#include "trainer/plan_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainer/config_schema.h"

namespace shardwright::trainer {
namespace {

constexpr std::int64_t kPresetMicroBatch = 1;
constexpr const char* kPresetType = "bf16";

const ConfigKey& schema_key(const std::string& name) {
  return *std::ranges::find(config_schema(), name, &ConfigKey::name);
}

}  // namespace

TrainingShape training_shape(const Config& config) {
  TrainingShape shape;
  shape.batch = config.batch();
  shape.positions = config.model.seq_len;
  shape.dtype = config.train.dtype;
  shape.recompute = config.parallel.recompute;
  shape.sequence_parallel = config.parallel.sequence_parallel;
  shape.offload = config.parallel.offload == "nvme";
  shape.schedule = parse_schedule_kind(config.parallel.schedule);
  return shape;
}

PlanRequest plan_request(const Config& config, const ValueSources& sources) {
  const auto said = [&](const char* key) { return sources.at(key) != "default"; };
  PlanRequest request;
  request.model = reshard::build_model(config.model);
  request.shape = training_shape(config);
  request.gpus = config.parallel.layout.least_ranks();
  request.recompute = said("parallel.recompute") ? std::vector{config.parallel.recompute}
                                                 : schema_key("parallel.recompute").choices;
  if (said("parallel.sequence_parallel")) request.sequence_parallel = {config.parallel.sequence_parallel};
  return request;
}

PlanRequest plan_request(const reshard::Preset& preset) {
  PlanRequest request;
  request.model = reshard::build_model(preset.model);
  request.shape.batch = {preset.global_batch, kPresetMicroBatch};
  request.shape.positions = preset.model.seq_len;
  request.shape.dtype = kPresetType;
  return request;
}

PlanRequest plan_request(const reshard::ModelSpec& model, const std::string& training_config, int gpus) {
  constexpr std::int64_t kLargestBatch = 1'000'000'000;
  PlanRequest request;
  request.model = model;
  request.gpus = gpus;
  request.shape.positions = model.config.seq_len;
  request.shape.batch = {gpus, 1};
  // Another program may have written anything there.
  const auto document = nlohmann::json::parse(training_config, nullptr, false);
  const auto train = document.is_object() ? document.value("train", nlohmann::json()) : nlohmann::json();
  if (!train.is_object()) return request;
  const auto count = [&](const char* key) {
    const auto value = train.value(key, nlohmann::json());
    const std::int64_t number = value.is_number_integer() ? value.get<std::int64_t>() : 0;
    return number <= kLargestBatch ? number : 0;
  };
  const reshard::BatchShape batch{count("global_batch"), count("micro_batch")};
  if (batch.global_batch > 0 && batch.micro_batch > 0) request.shape.batch = batch;
  const auto type = train.value("dtype", nlohmann::json());
  const std::vector<std::string>& types = schema_key("train.dtype").choices;
  if (type.is_string() && std::ranges::find(types, type.get<std::string>()) != types.end())
    request.shape.dtype = type.get<std::string>();
  return request;
}

}  // namespace shardwright::trainer
