// libhdf5 over Env: files are written through a small file driver (VFD) into a WritableFile, and read from
// bytes in memory whose digest was checked before. Internal to this room, for .cc files.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ckpt/env.h"

namespace shardwright::ckpt {

/// A new HDF5 file in the format of HDF5 1.10, where all metadata have checksums.
///
/// libhdf5 forgets failed writes: after one, later writes, flush and close report success, and the file opens
/// with zeros in the hole. So the driver keeps the first failure, drops all later writes, and lets libhdf5
/// believe that all is well (its error paths leak open files); check() throws that failure. Call it after
/// each H5 call that may write.
class Hdf5Output {
 public:
  /// `path` is for messages. `file` must be empty and outlive this object.
  Hdf5Output(WritableFile& file, const std::string& path);
  /// Closes a file that is to be abandoned.
  ~Hdf5Output();
  Hdf5Output(const Hdf5Output&) = delete;
  Hdf5Output& operator=(const Hdf5Output&) = delete;

  hid_t id() const { return file_; }
  /// Throws the first failure of the driver, if there was one.
  void check() const;
  /// From now on, looks for a write of exactly this memory (libhdf5 may write metadata before and after it).
  void await_write(std::span<const std::byte> data);
  /// Where it went in the file, and no longer looks; Error(io) if there was none.
  std::uint64_t awaited_address();
  /// Closes the file; every other identifier in it must be closed before. Throws unless all of it was
  /// written.
  void close();

 private:
  std::string path_;
  std::shared_ptr<struct Hdf5DriverState> state_;
  hid_t file_ = H5I_INVALID_HID;
};

}  // namespace shardwright::ckpt
