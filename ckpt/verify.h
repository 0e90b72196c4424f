// Reads and checks every byte of a checkpoint, and reports every problem.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/env.h"

namespace shardwright::ckpt {

/// `code` is one of commit, manifest, version, missing_file, size, digest, chunk, decode, fingerprint,
/// coverage, overlap, path.
struct Problem {
  std::string code;
  std::string file;
  std::string tensor;
  std::string kind;
  std::string message;
};

struct VerifyReport {
  std::string path;
  std::uint64_t step = 0;
  std::uint64_t files = 0;
  std::uint64_t chunks = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::vector<Problem> problems;
  bool ok() const { return problems.empty(); }
};

/// Never throws for damage; `progress` (may be empty) gets bytes done and bytes in all.
VerifyReport verify(Env& env, const std::string& path, int threads,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace shardwright::ckpt
