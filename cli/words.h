// Numbers, times, layouts and models as a person says them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "reshard/layout.h"

namespace shardwright::cli {

/// "148,032".
std::string grouped_text(std::uint64_t number);

/// "9,876", "148.0 thousand", "1.24 million", "70.6 billion".
std::string count_text(std::uint64_t number);

/// "1 layer", "1,000 layers".
std::string number_of(std::uint64_t number, const char* one);

/// Now.
double seconds_since_epoch();

/// A moment in seconds since the epoch: "2026-01-31T12:00:00.000Z" for programs.
std::string utc(double moment);

/// The same beside another moment: "just now", "3 minutes ago", "in 2 hours" (clocks differ), and from 60
/// days on the date.
std::string age_text(double moment, double now);

/// The layout that a document says; nothing if it is another program's.
std::optional<reshard::Layout> known_layout(const nlohmann::ordered_json& layout);

/// "2-way tensor x 2-stage pipeline x 3-way data parallel, ZeRO 1", from a layout document; "none said" if it
/// says nothing, and another program's in its own words.
std::string layout_text(const nlohmann::ordered_json& layout);

/// "GPT-2 style, 4 layers of width 64, 4 heads, ..." from a model document; what is none of ours, as it is.
std::string model_text(const nlohmann::ordered_json& model);

}  // namespace shardwright::cli
