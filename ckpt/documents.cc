#include "ckpt/documents.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/json_depth.h"
#include "ckpt/limits.h"

namespace shardwright::ckpt {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& name, const std::string& wrong) {
  throw Error(ErrorCode::usage, fmt::format("{} document: {}", name, wrong));
}

Json parsed(const std::string& name, const std::string& text) {
  if (text.size() > kMaxDocumentBytes)
    refuse(name, fmt::format("has {} bytes; at most {} are right", text.size(), kMaxDocumentBytes));
  if (nests_too_deep(text))
    refuse(name, fmt::format("nests deeper than {} levels; fewer are right", kMaxJsonDepth));
  Json document = Json::parse(text, nullptr, false);
  if (!document.is_object())
    refuse(name, "is no JSON object, or holds a number beyond 64-bit floats; a JSON object is right");
  return document;
}

}  // namespace

void check_document(const std::string& name, const std::string& text) { parsed(name, text); }

void check_documents(const Description& description, std::uint64_t step) {
  if (!description.training.empty()) {
    const Json training = parsed("training", description.training);
    const auto said = training.find("step");
    if (said != training.end() && !(said->is_number_unsigned() && *said == step))
      refuse("training",
             fmt::format("says step {}, and the save is of step {}; the same is right", said->dump(), step));
  }
  if (!description.model.empty()) check_document("model", description.model);
  if (!description.config.empty()) check_document("config", description.config);
  if (!description.layout.empty()) check_document("layout", description.layout);
}

}  // namespace shardwright::ckpt
