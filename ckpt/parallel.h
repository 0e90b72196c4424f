// A counted loop over worker threads, as loading and verifying use it.
#pragma once

#include <functional>

namespace shardwright::ckpt {

/// Runs `body(worker, index)` for each index below `count`, on up to `threads` threads (the caller's among
/// them; worker is below `threads`). Indices are handed out in order. The first exception ends the loop early
/// and is thrown here once all threads have returned.
void parallel_for(int threads, std::size_t count, const std::function<void(int, std::size_t)>& body);

}  // namespace shardwright::ckpt
