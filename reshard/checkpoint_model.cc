#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "ckpt/error.h"
#include "reshard/reshard.h"

namespace shardwright::reshard {

namespace {

/// `read` with its refusal said of the checkpoint.
template <typename Read>
auto of_transformer(const std::string& path, const char* document, const Read& read) {
  try {
    return read();
  } catch (const Error& e) {
    throw Error(
        ErrorCode::mismatch,
        fmt::format("{}: is no transformer's checkpoint (its {}: {}); one that `shardwright train` wrote",
                    path, document, e.what()),
        path);
  }
}

}  // namespace

ModelConfig config_of(const ckpt::Manifest& manifest, const std::string& path) {
  return of_transformer(path, "model",
                        [&] { return build_model(parse_model_json(manifest.description.model)).config; });
}

Layout layout_of(const ckpt::Manifest& manifest, const std::string& path) {
  return of_transformer(path, "layout", [&] { return parse_layout_json(manifest.description.layout); });
}

ModelSpec model_of(const ckpt::Manifest& manifest, const std::string& path) {
  ModelSpec model = build_model(config_of(manifest, path));
  const auto refuse = [&](const std::string& tensor, const std::string& wrong) {
    throw Error(
        ErrorCode::mismatch,
        fmt::format("{}: {} {}; the tensors of the model that the checkpoint names", path, tensor, wrong),
        path);
  };
  std::unordered_map<std::string_view, const TensorSpec*> of_name;
  for (const TensorSpec& tensor : model.tensors) of_name[tensor.name] = &tensor;
  for (const ckpt::TensorEntry& stored : manifest.tensors) {
    const auto found = of_name.find(stored.name);
    if (found == of_name.end()) refuse(stored.name, "is in the checkpoint, and not in its model");
    const ckpt::Dims& shape = found->second->shape;
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
