// The columns of a manifest's file whose digest was checked, read so that nothing they claim costs more than
// the bytes that are there can hold (FORMAT.md, "What a reader rejects").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/hdf5_handle.h"
#include "ckpt/manifest_tables.h"

namespace shardwright::ckpt {

/// Over the bytes of one manifest.h5. libhdf5 sees these bytes in memory and nothing else: no link, virtual
/// dataset or external storage leads out of them, and no filter is loaded. All calls are Error(damaged) for
/// what is not as the format says, before memory is taken for it. Not thread-safe.
class Hdf5Tables : public ManifestTables {
 public:
  /// `path` is for messages. The bytes are needed for this call only.
  Hdf5Tables(std::span<const std::byte> bytes, const std::string& path);

  /// Of the root, at least 1.
  std::uint64_t version() const;
  std::uint64_t rows(const std::string& dataset) const override;
  std::vector<std::uint64_t> numbers(const std::string& dataset, std::uint64_t rows,
                                     std::uint64_t width) const override;
  std::vector<std::string> strings(const std::string& dataset, std::uint64_t rows) const override;
  std::string text(const std::string& dataset) const override;

 private:
  Hdf5Handle find(const std::string& dataset) const;
  void check_links(const std::string& dataset) const;
  void check_filters(const std::string& dataset, hid_t creation) const;
  std::uint64_t extent(hid_t opened, const std::string& dataset, std::uint64_t width) const;
  void admit(hid_t opened, const std::string& dataset, std::uint64_t stored, std::uint64_t in_memory) const;
  void read(hid_t opened, const std::string& dataset, hid_t type, void* values) const;

  std::uint64_t bytes_;
  mutable std::uint64_t memory_ = 0;  // that the values read so far need
  Hdf5Handle file_;
};

}  // namespace shardwright::ckpt
