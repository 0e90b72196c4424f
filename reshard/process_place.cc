#include "reshard/process_place.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "ckpt/error.h"

namespace shardwright::reshard {
namespace {

std::optional<int> number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  int value = 0;
  const std::string_view digits(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0)
    throw Error(ErrorCode::usage,
                fmt::format("{}: \"{}\" is not a number; only a launcher sets it", name, digits));
  return value;
}

}  // namespace

ProcessPlace place_from_environment() {
  // In a batch script SLURM_PROCID is set as well; only a step has tasks of its own.
  constexpr std::pair<const char*, const char*> kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& [rank_name, count_name] : kLaunchers) {
    const std::optional<int> rank = number(rank_name), count = number(count_name);
    if (!rank || !count) continue;
    if (*rank >= *count)
      throw Error(ErrorCode::usage, fmt::format("{} is {} and {} is {}; ranks count from 0 and end below it",
                                                rank_name, *rank, count_name, *count));
    return {*rank, *count};
  }
  return {};
}

}  // namespace shardwright::reshard
