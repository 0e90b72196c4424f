#include "cli/layout_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "ckpt/error.h"
#include "cli/output.h"
#include "reshard/reshard.h"

namespace shardwright::cli {
std::vector<int> parse_stages(const std::string& flag, const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0 || (next != end && *next != ','))
      throw Error(ErrorCode::usage,
                  fmt::format("{}: '{}' is no list of numbers; give it as 5,6,6,5", flag, text));
    numbers.push_back(number);
    if (next == end) return numbers;
    at = next + 1;
  }
}

void LayoutFlags::declare(Options& flags) {
  flags.text("--layout", "LAYOUT", whole_, "target layout, as t2p1d2z1");
  flags.integer("--tp", "T", 1, tp_, "tensor parallel ranks (default: the source's, as for the next ones)",
                reshard::kMaxRanks);
  flags.integer("--pp", "P", 1, pp_, "pipeline stages", reshard::kMaxRanks);
  flags.integer("--dp", "D", 1, dp_, "data parallel ranks", reshard::kMaxRanks);
  flags.integer("--zero", "Z", 0, zero_, "ZeRO stage", 3);
  flags.integer("--vpp", "V", 1, vpp_, "virtual stages of a rank", reshard::kMaxRanks);
  flags.text("--stages", "5,6,6,5", stages_, "layers of each stage");
  flags.text("--rank-order", "tdp", order_, "which axis counts fastest to slowest among the ranks");
}

bool LayoutFlags::given() const { return whole_ || single() || stages_ || order_; }

reshard::Layout LayoutFlags::apply(const ckpt::Manifest& source, const std::string& path) const {
  reshard::Layout layout = degrees(source, path);
  if (stages_) layout.stages = parse_stages("--stages", *stages_);
  if (order_) layout.order = *order_;
  return layout;
}

reshard::Layout LayoutFlags::degrees(const ckpt::Manifest& source, const std::string& path) const {
  if (whole_) {
    if (single())
      throw Error(ErrorCode::usage, "--layout: is given beside single degrees; give the one or the others");
    return reshard::parse_layout(*whole_);
  }
  if (source.description.layout.empty())
    throw Error(ErrorCode::usage,
                fmt::format("--layout: is missing, and {} says none; give it as t2p1d2z1", path));
  reshard::Layout from = reshard::layout_of(source, path);
  if (!single()) return from;
  const nlohmann::ordered_json layout = json_document(source.description.layout);
  // The source's degrees with those given in their place, as a layout string: what they mean is the reshard
  // room's business.
  const std::tuple<char, const char*, const std::optional<std::int64_t>*> letters[] = {
      {'t', "tp", &tp_}, {'p', "pp", &pp_}, {'d', "dp", &dp_}, {'z', "zero", &zero_}, {'v', "vpp", &vpp_}};
  std::string text;
  for (const auto& [letter, name, given] : letters)
    text += fmt::format("{}{}", letter, *given ? **given : layout.at(name).get<std::int64_t>());
  reshard::Layout target = reshard::parse_layout(text);
  target.order = from.order;
  return target;
}

}  // namespace shardwright::cli
