// Fields of JSON that others wrote, taken only if they are what they should be: nlohmann's own conversions
// wrap a number that does not fit, cut off a fraction, and are undefined for a large one. What is refused is
// said in words of this project: the JSON library's own reach no user.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardwright::ckpt {

/// Generations stay below this: whoever reads JSON keeps such numbers exactly.
inline constexpr std::uint64_t kEndOfGenerations = 1ull << 53;

/// A JSON object. Error(damaged) for any other text.
nlohmann::json parse_object(const std::string& text);

/// A field of any kind. Error(damaged) if it is not there.
const nlohmann::json& field_of(const nlohmann::json& object, const char* field);

/// A list, a text, true or false, and a number. Error(damaged) for anything else, and if the field is not
/// there.
const nlohmann::json& list_field(const nlohmann::json& object, const char* field);
std::string text_field(const nlohmann::json& object, const char* field);
bool flag_field(const nlohmann::json& object, const char* field);
double real_field(const nlohmann::json& object, const char* field);

/// A whole number from 0 that fits 64 bits. Error(damaged) otherwise, and if the field is not there.
std::uint64_t number_field(const nlohmann::json& object, const char* field);

/// A whole number that fits T: int or std::int64_t. Error(damaged) otherwise, and if the field is not there.
template <class T>
T integer_field(const nlohmann::json& object, const char* field);

/// A list of such numbers.
template <class T>
std::vector<T> integers_field(const nlohmann::json& object, const char* field);

/// A generation. Error(damaged) if it is none.
std::uint64_t generation_field(const nlohmann::json& object);

/// The uuid of a run, or whatever a program calls it: at most 256 bytes. Error(damaged) otherwise.
std::string run_field(const nlohmann::json& object);

}  // namespace shardwright::ckpt
