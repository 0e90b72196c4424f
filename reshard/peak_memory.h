// The most memory that this process has had.
#pragma once

#include <cstdint>

namespace shardwright::reshard {

/// Peak resident bytes since the program began. What the process that started it had does not count, as it
/// does in getrusage() where the one becomes the other (vfork, exec). Thread-safe.
std::uint64_t peak_rss_bytes();

}  // namespace shardwright::reshard
