// The manifest: everything about a checkpoint but the values. Stored as manifest.h5 (columnar tables),
// digested by COMMIT, and never parsed before that digest was checked (FORMAT.md, "Manifest").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/shard.h"

namespace shardwright::ckpt {

inline constexpr std::uint32_t kManifestVersion = 1;

struct TensorEntry {
  std::string name;
  Dims shape;
};

/// One kind of state of one tensor.
struct StateEntry {
  std::uint32_t tensor = 0;  // row in Manifest::tensors
  std::string kind;
  DType dtype = DType::f32;
  Fingerprint fingerprint;  // of the whole tensor; its count equals the element count
};

/// One writer box.
struct BoxEntry {
  std::uint32_t state = 0;  // row in Manifest::states
  std::uint32_t file = 0;   // row in Manifest::files
  std::string dataset;
  Box box;
  Dims chunk;
  std::uint64_t first_chunk = 0;
  std::uint64_t chunks = 0;
};

/// Free of layout. Documents are JSON text; this library only carries `model`, `config` and `layout`.
struct Description {
  std::string training;  // object with step, samples, seed, loss_scale, skipped_steps, dtype, loss
  std::string model;
  std::string config;
  std::string layout;
};

struct Manifest {
  std::vector<TensorEntry> tensors;  // sorted by name
  std::vector<StateEntry> states;    // sorted by tensor, then kind
  std::vector<BoxEntry> boxes;       // sorted by state, then offset
  std::vector<FileRecord> files;     // sorted by name
  Description description;
};

/// Joins the parts of all writers. Error(damaged) unless every state is covered exactly once (element counts,
/// overlap), shapes and types agree, and no part carries an error.
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

struct ManifestDigest {
  std::string name = "manifest.h5";
  std::uint64_t bytes = 0;
  Digest128 xxh3_128;
};

/// The bytes of manifest.h5. Deterministic for equal manifests.
std::vector<std::byte> encode_manifest(const Manifest& manifest);

/// Inverse of encode_manifest() for bytes whose digest was checked; `path` is for messages. Rows are bounded
/// by the bytes themselves; check() has not been applied. Unknown datasets are ignored. Error(damaged |
/// future_version).
Manifest parse_manifest(std::span<const std::byte> bytes, const std::string& path);

/// Reads `directory`/manifest.h5 and checks size and digest, nothing else. Error(damaged | missing).
std::vector<std::byte> read_manifest_bytes(Env& env, const std::string& directory,
                                           const ManifestDigest& expected);

/// Writes and fsyncs `directory`/manifest.h5 and returns its digest.
ManifestDigest write_manifest(Env& env, const std::string& directory, const Manifest& manifest);

/// Reads after checking size and digest, and refuses a manifest that breaks a rule of check();
/// Error(damaged | missing | future_version).
Manifest read_manifest(Env& env, const std::string& directory, const ManifestDigest& expected);

}  // namespace shardwright::ckpt
