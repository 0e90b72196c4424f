// Numbers, times, layouts and models as a person says them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwright::cli {

/// "148,032".
std::string grouped_text(std::uint64_t number);

/// "9,876", "148.0 thousand", "1.24 million", "70.6 billion".
std::string count_text(std::uint64_t number);

/// Now.
double seconds_since_epoch();

/// A moment in seconds since the epoch: "2026-01-31T12:00:00.000Z" for programs.
std::string utc(double moment);

/// The same beside another moment: "just now", "3 minutes ago", "in 2 hours" (clocks differ), and from 60
/// days on the date.
std::string age_text(double moment, double now);

/// "2-way tensor x 2-stage pipeline x 3-way data parallel, ZeRO 1", from a layout document; "none" if it is
/// null.
std::string layout_text(const nlohmann::ordered_json& layout);

/// "GPT-2 style, 4 layers of width 64, 4 heads, ..." from a model document; what is none of ours, as it is.
std::string model_text(const nlohmann::ordered_json& model);

}  // namespace shardwright::cli
