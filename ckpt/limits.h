// The most that a reader takes of anything in a checkpoint, held against what files claim before memory is
// taken (FORMAT.md, "What a reader rejects"). Writers keep to them too.
#pragma once

#include <cstdint>

namespace shardwright::ckpt {

inline constexpr std::uint64_t kMaxManifestBytes = 1ull << 30;
inline constexpr std::uint64_t kMaxPartBytes = 1ull << 30;  // a part of a million boxes has half of it
inline constexpr std::uint64_t kMaxDocumentBytes = 1ull << 28;
inline constexpr std::uint64_t kMaxTableRows = 1ull << 28;
inline constexpr std::uint64_t kMaxTableStringBytes = 1ull << 16;
inline constexpr std::uint64_t kMaxTableChunkBytes = 1ull << 20;
/// More than that no deflated stream gives for a byte.
inline constexpr std::uint64_t kMaxDeflateRatio = 1032;
/// Of all columns of a manifest; less for one of under 16 MiB, by kMaxDeflateRatio.
inline constexpr std::uint64_t kMaxTablesMemory = 1ull << 34;
/// Rows of /chunks: a table of 1.5 GiB.
inline constexpr std::uint64_t kMaxChunksOfShard = 1ull << 26;
/// Of a chunk of kMaxChunkBytes or less; no encoder needs near as much.
inline constexpr std::uint64_t kMaxStoredChunkBytes = 2ull << 20;

}  // namespace shardwright::ckpt
