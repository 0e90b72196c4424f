// What a checkpoint says of itself: the tables of its manifest and the fields of COMMIT, as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/digest128.h"
#include "ckpt/dtype.h"
#include "ckpt/fingerprint.h"

namespace shardwright::ckpt {

/// The format that this library writes, and the newest that it reads.
inline constexpr int kFormatVersion = 1;

/// What is recorded about a shard file as a whole.
struct FileRecord {
  std::string name;  // "rank-00003.h5"
  std::uint64_t bytes = 0;
  Digest128 rest;  // all bytes outside the stored chunks, in file order, table included, of the closed file
  std::uint64_t table_address = 0;
  std::uint64_t table_bytes = 0;
  Digest128 table;
};

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

struct ManifestDigest {
  std::string name = "manifest.h5";
  std::uint64_t bytes = 0;
  Digest128 xxh3_128;
};

/// What COMMIT says. The chain of digests starts here.
struct Commit {
  int version = 1;
  std::string run;  // uuid of the run
  std::uint64_t generation = 0;
  std::string attempt;
  std::uint64_t step = 0;
  ManifestDigest manifest;
};

}  // namespace shardwright::ckpt
