#include "ckpt/record_fields.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/json_depth.h"

namespace shardwright::ckpt {
namespace {

constexpr std::size_t kMaxRunBytes = 256;

[[noreturn]] void refuse(const char* field, const char* what) {
  throw Error(ErrorCode::damaged, fmt::format("field '{}' is {}", field, what));
}

template <class T>
T integer(const nlohmann::json& value, const char* field) {
  const auto low = std::int64_t{std::numeric_limits<T>::min()},
             high = std::int64_t{std::numeric_limits<T>::max()};
  // A number without a sign has a type of its own, which may hold more than a signed one.
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high)
                        : value.is_number_integer() && value.get<std::int64_t>() >= low;
  if (!fits) refuse(field, "no whole number, or too large a one");
  return static_cast<T>(value.get<std::int64_t>());
}

}  // namespace

nlohmann::json parse_object(const std::string& text) {
  if (text.empty()) throw Error(ErrorCode::damaged, "empty");
  if (nests_too_deep(text)) throw Error(ErrorCode::damaged, "nests too deep");
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object()) throw Error(ErrorCode::damaged, "no JSON object");
  return document;
}

const nlohmann::json& field_of(const nlohmann::json& object, const char* field) {
  if (!object.is_object() || !object.contains(field)) refuse(field, "missing");
  return object[field];
}

const nlohmann::json& list_field(const nlohmann::json& object, const char* field) {
  const nlohmann::json& value = field_of(object, field);
  if (!value.is_array()) refuse(field, "no list");
  return value;
}

std::string text_field(const nlohmann::json& object, const char* field) {
  const nlohmann::json& value = field_of(object, field);
  if (!value.is_string()) refuse(field, "no text");
  return value.get<std::string>();
}

bool flag_field(const nlohmann::json& object, const char* field) {
  const nlohmann::json& value = field_of(object, field);
  if (!value.is_boolean()) refuse(field, "neither true nor false");
  return value.get<bool>();
}

double real_field(const nlohmann::json& object, const char* field) {
  const nlohmann::json& value = field_of(object, field);
  if (!value.is_number()) refuse(field, "no number");
  return value.get<double>();
}

template <class T>
T integer_field(const nlohmann::json& object, const char* field) {
  return integer<T>(field_of(object, field), field);
}
template int integer_field(const nlohmann::json&, const char*);
template std::int64_t integer_field(const nlohmann::json&, const char*);

template <class T>
std::vector<T> integers_field(const nlohmann::json& object, const char* field) {
  std::vector<T> values;
  for (const nlohmann::json& value : list_field(object, field)) values.push_back(integer<T>(value, field));
  return values;
}
template std::vector<int> integers_field(const nlohmann::json&, const char*);

std::uint64_t number_field(const nlohmann::json& object, const char* field) {
  const nlohmann::json& value = field_of(object, field);
  if (!value.is_number_unsigned()) refuse(field, "no whole number");
  return value.get<std::uint64_t>();
}

std::uint64_t generation_field(const nlohmann::json& object) {
  const std::uint64_t value = number_field(object, "generation");
  if (value >= kEndOfGenerations) refuse("generation", "too large to be one");
  return value;
}

std::string run_field(const nlohmann::json& object) {
  std::string run = text_field(object, "run");
  if (run.size() > kMaxRunBytes) refuse("run", "too long");
  return run;
}

}  // namespace shardwright::ckpt
