#include "trainer/plan_request.h"

#include <algorithm>

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

}  // namespace shardwright::trainer
