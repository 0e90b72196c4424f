// For test builds: memory that a lazy snapshot has yet to read cannot be written, so that a forgotten
// before_write() crashes where it is forgotten. Built in with SHARDWRIGHT_PROTECT_PENDING; otherwise it does
// nothing.
#pragma once

#include <cstddef>
#include <span>

namespace shardwright::ckpt {

/// Makes the whole pages inside `memory` read-only, or writable again, which they must have been before; what
/// shares a page with other data is left alone. Thread-safe.
void protect_pages(std::span<const std::byte> memory);
void release_pages(std::span<const std::byte> memory);

}  // namespace shardwright::ckpt
