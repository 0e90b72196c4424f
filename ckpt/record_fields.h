// Fields of signed records, taken only if they are what they should be.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwright::ckpt {

/// Generations stay below this: whoever reads JSON keeps such numbers exactly.
inline constexpr std::uint64_t kEndOfGenerations = 1ull << 53;

/// A whole number from 0 that fits 64 bits. nlohmann's own conversion would wrap a negative one and cut off a
/// fraction. Error(damaged) otherwise, and if the field is not there.
std::uint64_t number_field(const nlohmann::json& object, const char* field);

/// A generation. Error(damaged) if it is none.
std::uint64_t generation_field(const nlohmann::json& object);

/// The uuid of a run, or whatever a program calls it: at most 256 bytes. Error(damaged) otherwise.
std::string run_field(const nlohmann::json& object);

}  // namespace shardwright::ckpt
