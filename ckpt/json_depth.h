// How deep a JSON text nests. Parsing does not mind; copying, comparing and printing what was parsed are
// recursive and end the process where the stack does, so a text from a file is asked for its depth before
// anything of it is taken.
#pragma once

#include <cstddef>
#include <string_view>

namespace shardwright::ckpt {

/// No document of this project nests deeper than five levels.
inline constexpr std::size_t kMaxJsonDepth = 256;

/// True if arrays and objects of `json` nest deeper than kMaxJsonDepth. Any text may be given. Thread-safe.
bool nests_too_deep(std::string_view json);

}  // namespace shardwright::ckpt
