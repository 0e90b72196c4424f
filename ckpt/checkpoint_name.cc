#include "ckpt/checkpoint_name.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

#include "ckpt/commit.h"

namespace shardwright::ckpt {

std::optional<CheckpointName> parse_checkpoint_name(const std::string& name) {
  const std::size_t stem = step_dir_name(0).size();
  const auto step = parse_step_dir(name.substr(0, stem));
  if (!step) return std::nullopt;
  CheckpointName parsed{name, *step, NameState::committed, "", std::nullopt};
  if (name.size() == stem) return parsed;
  static constexpr std::array<std::pair<std::string_view, NameState>, 3> kMarks = {
      {{".tmp-", NameState::attempt},
       {".superseded-", NameState::superseded},
       {".trash-", NameState::trash}}};
  const std::string rest = name.substr(stem);
  for (const auto& [mark, state] : kMarks) {
    if (!rest.starts_with(mark) || rest.size() == mark.size()) continue;
    parsed.state = state;
    parsed.suffix = rest.substr(mark.size());
    std::uint64_t number = 0;
    const char* begin = parsed.suffix.data();
    if (std::from_chars(begin, begin + parsed.suffix.size(), number).ec == std::errc())
      parsed.generation = number;
    return parsed;
  }
  return std::nullopt;
}

std::string base_name(const std::string& path) {
  return std::filesystem::path(path + "/").parent_path().filename().string();
}

bool is_attempt(const std::string& path) {
  const std::string base = base_name(path);
  const auto name = parse_checkpoint_name(base);
  return name ? name->state == NameState::attempt : base.find(".tmp-") != std::string::npos;
}

}  // namespace shardwright::ckpt
