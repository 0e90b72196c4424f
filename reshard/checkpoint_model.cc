#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "reshard/reshard.h"

namespace shardwright::reshard {

ModelSpec model_of(const ckpt::Manifest& manifest) {
  ModelSpec model = build_model(parse_model_json(manifest.description.model));
  const auto refuse = [](const std::string& tensor, const std::string& wrong) {
    throw Error(ErrorCode::mismatch,
                fmt::format("{}: {}; the tensors of the model that the checkpoint names", tensor, wrong));
  };
  for (const ckpt::TensorEntry& stored : manifest.tensors) {
    const std::int64_t row = model.find(stored.name);
    if (row < 0) refuse(stored.name, "is in the checkpoint, and not in its model");
    const ckpt::Dims& shape = model.tensors[static_cast<std::size_t>(row)].shape;
    if (stored.shape != shape) {
      refuse(stored.name, fmt::format("has shape {} in the checkpoint, and {} in its model",
                                      to_string(stored.shape), to_string(shape)));
    }
  }
  if (manifest.tensors.size() != model.tensors.size()) {
    for (const TensorSpec& tensor : model.tensors) {
      const auto named = [&](const ckpt::TensorEntry& e) { return e.name == tensor.name; };
      if (std::none_of(manifest.tensors.begin(), manifest.tensors.end(), named)) {
        refuse(tensor.name, "is in the checkpoint's model, and not stored");
      }
    }
  }
  return model;
}

}  // namespace shardwright::reshard
