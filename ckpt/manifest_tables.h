// The columns of a manifest, whatever holds them: libhdf5 for a file, a fuzz target for a test of what comes
// after it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/manifest.h"

namespace shardwright::ckpt {

/// One dataset per column, by its path in the file. What is asked for and is not there, or of another type or
/// number of rows, is Error(damaged).
class ManifestTables {
 public:
  explicit ManifestTables(std::string path) : path_(std::move(path)) {}
  virtual ~ManifestTables() = default;

  virtual std::uint64_t rows(const std::string& dataset) const = 0;
  /// `rows` x max(`width`, 1) unsigned integers, row after row.
  virtual std::vector<std::uint64_t> numbers(const std::string& dataset, std::uint64_t rows,
                                             std::uint64_t width = 0) const = 0;
  virtual std::vector<std::string> strings(const std::string& dataset, std::uint64_t rows) const = 0;
  virtual std::string text(const std::string& dataset) const = 0;

  [[noreturn]] void refuse(const std::string& dataset, const std::string& what) const;

 protected:
  std::string path_;  // for messages
};

/// The manifest that these columns make; check() has not been applied. Error(damaged).
Manifest join_tables(const ManifestTables& tables);

}  // namespace shardwright::ckpt
