#include "cli/words.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string written(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Another program's document in its own words, as far as a line holds.
std::string shown(const Json& document) {
  constexpr std::size_t kLine = 200;  // bytes
  const std::string text = written(document);
  if (text.size() <= kLine) return text;
  std::size_t end = kLine;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // no character is cut
  return text.substr(0, end) + "...";
}

std::string age_of(double seconds) {
  static constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}}};
  for (const auto& [unit, name] : kUnits)
    if (seconds >= unit) return number_of(static_cast<std::uint64_t>(seconds / unit), name);
  return "0 seconds";
}

std::string even_or_listed(const std::vector<std::int64_t>& layers) {
  for (const std::int64_t n : layers)
    if (n != layers.front()) return fmt::format(" of {} layers", fmt::join(layers, ", "));
  return "";
}

}  // namespace

std::string number_of(std::uint64_t number, const char* one) {
  return fmt::format("{} {}{}", grouped_text(number), one, number == 1 ? "" : "s");
}

std::string grouped_text(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string count_text(std::uint64_t number) {
  static constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}, {1e3, "thousand"}}};
  if (number < 10000) return grouped_text(number);
  const auto value = static_cast<double>(number);
  for (const auto& [unit, name] : kUnits)
    if (value >= unit)
      return value / unit < 10 ? fmt::format("{:.2f} {}", value / unit, name)
                               : fmt::format("{:.1f} {}", value / unit, name);
  return grouped_text(number);
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc(double moment) {
  const auto whole = static_cast<std::time_t>(std::floor(moment));
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z", fmt::gmtime(whole),
                     static_cast<int>((moment - std::floor(moment)) * 1000));
}

std::string age_text(double moment, double now) {
  const double age = now - moment;
  constexpr double kMonths = 60 * 86400;
  if (std::abs(age) < 2) return "just now";
  if (age >= kMonths) return fmt::format("{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(moment)));
  return age > 0 ? age_of(age) + " ago" : "in " + age_of(-age);
}

std::optional<reshard::Layout> known_layout(const Json& layout) {
  try {
    return reshard::parse_layout_json(written(layout));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string layout_text(const Json& layout) {
  if (layout.empty()) return "none said";
  if (!known_layout(layout)) return shown(layout);
  const auto degree = [&](const char* name) { return layout.value(name, std::int64_t{1}); };
  std::vector<std::string> axes;
  if (degree("tp") > 1) axes.push_back(fmt::format("{}-way tensor", degree("tp")));
  std::string stages;
  if (degree("pp") > 1) {
    axes.push_back(fmt::format("{}-stage pipeline", degree("pp")));
    if (degree("vpp") > 1) stages = fmt::format(", {} interleaved parts a stage", degree("vpp"));
    if (layout.contains("stages"))
      if (const std::string listed = even_or_listed(layout["stages"].get<std::vector<std::int64_t>>());
          !listed.empty())
        stages += fmt::format(", {}{}", degree("vpp") > 1 ? "parts" : "stages", listed);
  }
  if (degree("dp") > 1) axes.push_back(fmt::format("{}-way data", degree("dp")));
  const std::string zero =
      layout.value("zero", 0) > 0 ? fmt::format(", ZeRO {}", layout.value("zero", 0)) : "";
  return axes.empty() ? "one rank" + zero
                      : fmt::format("{} parallel{}{}", fmt::join(axes, " x "), stages, zero);
}

std::string model_text(const Json& model) {
  if (model.empty()) return "none said";
  try {
    const reshard::ModelConfig m = reshard::parse_model_json(written(model));
    const std::string style = m.arch == "gpt2"    ? "GPT-2"
                              : m.arch == "llama" ? "Llama"
                              : m.arch == "bloom" ? "BLOOM"
                                                  : m.arch;
    return fmt::format(
        "{} style, {} of width {}, {}{}, MLP of {}, vocabulary {}, sequences of {}, {} embeddings", style,
        number_of(static_cast<std::uint64_t>(m.layers), "layer"), m.hidden,
        number_of(static_cast<std::uint64_t>(m.heads), "head"),
        m.kv_heads == m.heads || m.kv_heads == 0 ? "" : fmt::format(" on {} KV heads", m.kv_heads), m.ffn,
        m.vocab, m.seq_len, m.tie_embeddings ? "tied" : "untied");
  } catch (const Error&) {
    return shown(model);
  }
}

}  // namespace shardwright::cli
