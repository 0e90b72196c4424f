// Sizes as people type and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwright::cli {

/// "512MiB", "2GiB", "1GB", "1.5 GiB", "4096" (bytes) in bytes; nothing for any other text, or one that does
/// not fit.
std::optional<std::uint64_t> parse_size(std::string_view text);

/// "512 MiB", "3.1 GiB", "97 bytes".
std::string size_text(std::uint64_t bytes);

}  // namespace shardwright::cli
