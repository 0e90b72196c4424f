// The manifest: everything about a checkpoint but the values. Stored as manifest.h5 (columnar tables),
// digested by COMMIT, and never parsed before that digest was checked (FORMAT.md, "Manifest").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/contents.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {

inline constexpr std::uint32_t kManifestVersion = 1;

/// Joins the parts of all writers. Error(usage) unless every state is covered exactly once (element counts,
/// overlap) and shapes and types agree: what a part says was signed, so it is what its writer was asked to
/// save. Error(peer) if a part carries an error.
Manifest assemble(std::span<const Part> parts, Description description);

/// The rules every manifest must satisfy, checked on assembly, on reading and by verify: sorted and unique
/// names, boxes inside their tensor, coverage exactly once, chunk counts and table rows in range (FORMAT.md,
/// "What a reader rejects"). One entry per breach, with the contract's problem code (coverage, overlap,
/// manifest, path). Where rows point outside their tables, only those breaches are reported, because the rest
/// cannot be judged. Thread-safe.
struct Breach {
  std::string code;
  std::string tensor;
  std::string kind;
  std::string message;
};
std::vector<Breach> check(const Manifest& manifest);

/// The bytes of manifest.h5. Deterministic for equal manifests.
std::vector<std::byte> encode_manifest(const Manifest& manifest);

/// Inverse of encode_manifest() for bytes whose digest was checked; `path` is for messages. Memory is bounded
/// by the bytes themselves; check() has not been applied. Unknown datasets are ignored. Error(damaged |
/// future_version).
Manifest parse_manifest(std::span<const std::byte> bytes, const std::string& path);

/// Reads `directory`/manifest.h5 and checks size and digest, nothing else. Error(damaged | missing).
std::vector<std::byte> read_manifest_bytes(Env& env, const std::string& directory,
                                           const ManifestDigest& expected);

/// Writes and fsyncs `directory`/manifest.h5 and returns its digest. Error(usage) if it is above 1 GiB,
/// Error(exists) if there is one.
ManifestDigest write_manifest(Env& env, const std::string& directory, const Manifest& manifest);

/// Reads after checking size and digest, and refuses a manifest that breaks a rule of check();
/// Error(damaged | missing | future_version).
Manifest read_manifest(Env& env, const std::string& directory, const ManifestDigest& expected);

}  // namespace shardwright::ckpt
