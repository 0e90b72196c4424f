#include "ckpt/record_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

constexpr std::size_t kMaxRunBytes = 256;

[[noreturn]] void refuse(const char* field, const char* what) {
  throw Error(ErrorCode::damaged, fmt::format("field '{}' is {}", field, what));
}

const nlohmann::json& find(const nlohmann::json& object, const char* field) {
  if (!object.is_object() || !object.contains(field)) refuse(field, "missing");
  return object[field];
}

}  // namespace

std::uint64_t number_field(const nlohmann::json& object, const char* field) {
  const nlohmann::json& value = find(object, field);
  if (!value.is_number_unsigned()) refuse(field, "no whole number");
  return value.get<std::uint64_t>();
}

std::uint64_t generation_field(const nlohmann::json& object) {
  const std::uint64_t value = number_field(object, "generation");
  if (value >= kEndOfGenerations) refuse("generation", "too large to be one");
  return value;
}

std::string run_field(const nlohmann::json& object) {
  const nlohmann::json& value = find(object, "run");
  if (!value.is_string()) refuse("run", "no text");
  auto run = value.get<std::string>();
  if (run.size() > kMaxRunBytes) refuse("run", "too long");
  return run;
}

}  // namespace shardwright::ckpt
