#include "reshard/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/error.h"
#include "ckpt/json_depth.h"
#include "reshard/cast.h"

namespace shardwright::reshard {
namespace {

/// A tensor of the model by its role; null if it has none.
const TensorSpec* with_role(const ModelSpec& model, Role role) {
  const auto found = std::find_if(model.tensors.begin(), model.tensors.end(),
                                  [role](const TensorSpec& tensor) { return tensor.role == role; });
  return found == model.tensors.end() ? nullptr : &*found;
}

/// What tells the values of a tensor that are kept, by kind.
std::map<std::string, std::pair<ckpt::DType, ckpt::Fingerprint>> values_of(const ckpt::Manifest& source,
                                                                           const std::string& tensor,
                                                                           const Conversion& conversion) {
  std::map<std::string, std::pair<ckpt::DType, ckpt::Fingerprint>> by_kind;
  for (const ckpt::StateEntry& state : source.states)
    if (source.tensors[state.tensor].name == tensor && (!conversion.weights_only || state.kind == kParam))
      by_kind[state.kind] = {state.dtype, state.fingerprint};
  return by_kind;
}

}  // namespace

void add_cast(Conversion& conversion, const std::string& text) {
  static const std::map<std::string, ckpt::DType, std::less<>> types = {
      {"fp32", ckpt::DType::f32}, {"f32", ckpt::DType::f32}, {"bf16", ckpt::DType::bf16},
      {"fp16", ckpt::DType::f16}, {"f16", ckpt::DType::f16}, {"fp64", ckpt::DType::f64},
      {"f64", ckpt::DType::f64}};
  const std::size_t at = text.find('=');
  const auto type = types.find(at == std::string::npos ? "" : text.substr(at + 1));
  if (type == types.end() || at == 0)
    throw Error(ErrorCode::usage,
                fmt::format("--cast: '{}' is no KIND=DTYPE; give it as exp_avg=bf16 (fp32, bf16, fp16 or "
                            "fp64)",
                            text));
  if (!conversion.casts.emplace(text.substr(0, at), type->second).second)
    throw Error(ErrorCode::usage,
                fmt::format("--cast: '{}' is given twice; give it once", text.substr(0, at)));
}

std::string to_string(const Conversion& conversion) {
  std::string text = fmt::format("weights_only={} vocab={} tie={}", conversion.weights_only,
                                 conversion.vocab.value_or(0), static_cast<int>(conversion.tie));
  for (const auto& [kind, type] : conversion.casts) text += fmt::format(" {}={}", kind, ckpt::name(type));
  return text;
}

ModelConfig converted(const ModelConfig& source, const Conversion& conversion) {
  ModelConfig target = source;
  if (conversion.vocab) target.vocab = *conversion.vocab;
  if (conversion.tie != Tie::kept) {
    const bool tie = conversion.tie == Tie::tie;
    if (source.tie_embeddings == tie)
      throw Error(ErrorCode::usage, fmt::format("--{}: the embeddings are {} already; leave it out",
                                                tie ? "tie" : "untie", tie ? "tied" : "untied"));
    target.tie_embeddings = tie;
  }
  return target;
}

void check_casts(const ckpt::Manifest& source, const Conversion& conversion, const std::string& path) {
  std::set<std::string> kinds;
  for (const ckpt::StateEntry& state : source.states)
    if (!conversion.weights_only || state.kind == kParam) kinds.insert(state.kind);
  for (const auto& [kind, type] : conversion.casts) {
    if (!kinds.contains(kind))
      throw Error(ErrorCode::usage, fmt::format("--cast: {} has no '{}' that is kept; what is: {}", path,
                                                kind, fmt::join(kinds, ", ")));
    for (const ckpt::StateEntry& state : source.states)
      if (state.kind == kind && !is_floating(state.dtype))
        throw Error(ErrorCode::usage,
                    fmt::format("--cast: {} {} is {}, which has no other precision; leave '{}' out",
                                source.tensors[state.tensor].name, kind, ckpt::name(state.dtype), kind));
  }
}

void check_tie(const ckpt::Manifest& source, const ModelSpec& model, const Conversion& conversion,
               const std::string& path) {
  if (conversion.tie != Tie::tie) return;
  const std::string& embeddings = with_role(model, Role::embed_tokens)->name;
  const std::string& head = with_role(model, Role::lm_head)->name;
  const auto of_embeddings = values_of(source, embeddings, conversion),
             of_head = values_of(source, head, conversion);
  std::set<std::string> kinds;
  for (const auto* values : {&of_embeddings, &of_head})
    for (const auto& [kind, value] : *values) kinds.insert(kind);
  for (const std::string& kind : kinds) {
    const auto one = of_embeddings.find(kind), other = of_head.find(kind);
    if (one != of_embeddings.end() && other != of_head.end() && one->second == other->second) continue;
    throw Error(
        ErrorCode::mismatch,
        fmt::format("{}: {} differs from {} in '{}', and one of them would be lost; --tie takes equal ones{}",
                    path, head, embeddings, kind, kind == kParam ? "" : ", or --weights-only"),
        path);
  }
}

ckpt::Description converted(const ckpt::Description& source, const ModelConfig& from, const ModelConfig& to) {
  ckpt::Description target = source;
  if (from == to) return target;
  target.model = to_json(to);
  // The configuration tells what the training was; its model is the one that the checkpoint has now.
  if (ckpt::nests_too_deep(source.config)) return target;  // no configuration that this program knows
  auto config = nlohmann::ordered_json::parse(source.config, nullptr, false);
  if (config.is_object() && config.contains("model") && config["model"].is_object()) {
    auto& model = config["model"];
    if (model.contains("vocab")) model["vocab"] = to.vocab;
    if (model.contains("tie_embeddings")) model["tie_embeddings"] = to.tie_embeddings;
    target.config = config.dump();
  }
  return target;
}

}  // namespace shardwright::reshard
