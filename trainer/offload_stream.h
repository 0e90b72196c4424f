// Windows of a file in turn through a bounded ring of buffers: one thread reads ahead, one writes behind, the
// caller changes what lies between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "trainer/offload_file.h"

namespace shardwright::trainer {

struct OffloadPass {
  std::size_t windows = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t from = 0;  // offset of what is read; may be the same as `to`
  std::uint64_t to = 0;
  bool read = true;  // else windows come as zeros
};

/// Calls `change` for each window, in order, on the calling thread, with its bytes, and writes what it
/// leaves. Returns when all is written and on its way out of memory (OffloadFile::let_go). `ring` has room
/// for one window or more, and holds them in turn. The first error of the file or of `change` ends the pass
/// and is thrown; what the file has then is undefined.
void stream_windows(OffloadFile& file, const OffloadPass& pass, std::span<std::byte> ring,
                    const std::function<void(std::size_t window, std::span<std::byte>)>& change);

}  // namespace shardwright::trainer
