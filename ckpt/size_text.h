// Sizes as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace shardwright::ckpt {

/// "97 bytes", "3.1 GiB", "512 MiB". Thread-safe.
std::string size_text(std::uint64_t bytes);

}  // namespace shardwright::ckpt
