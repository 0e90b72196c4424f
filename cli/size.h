// Sizes as people type them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardwright::cli {

/// "512MiB", "2GiB", "1GB", "1.5 GiB", "4096" (bytes) in bytes; nothing for any other text, or one that does
/// not fit.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace shardwright::cli
