// Compares two checkpoints by logical tensor, whatever their layouts. Equal fingerprints are decided from the
// manifests alone; only tensors that differ are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"

namespace shardwright::ckpt {

struct Difference {
  std::string tensor;
  std::string kind;
  std::string what;  // value, missing, shape, dtype
  Dims index;        // first differing element, for value
  std::string a;     // value, shape or dtype in A; empty when missing there
  std::string b;
  std::uint64_t count = 0;  // differing elements
  double max_abs = 0;
  double max_rel = 0;
};

struct DiffReport {
  bool content_read = false;   // method "content" rather than "manifest"
  std::uint64_t compared = 0;  // states
  std::vector<Difference> differences;
  bool equal() const { return differences.empty(); }
};

struct DiffOptions {
  double atol = 0;  // |a - b| <= atol + rtol * |b| counts as equal; both 0: bits
  double rtol = 0;
  int threads = 1;
};

DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options);

}  // namespace shardwright::ckpt
