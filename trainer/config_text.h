// What a text must be so that a configuration with it can be written and read again.
#pragma once

#include <string_view>

namespace shardwright::trainer {

/// True for valid UTF-8 (no surrogates, no overlong forms, up to U+10FFFF): TOML is nothing else.
/// Thread-safe.
bool is_utf8(std::string_view text);

}  // namespace shardwright::trainer
