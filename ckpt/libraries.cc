#include "ckpt/libraries.h"

#include <fmt/format.h>
#include <xxhash.h>
#include <zstd.h>

#include "ckpt/hdf5_types.h"

namespace shardwright::ckpt {

std::vector<Library> linked_libraries() {
  unsigned major = 0, minor = 0, release = 0;
  hdf5_must(H5get_libversion(&major, &minor, &release), "tell its version", "libhdf5");
  const unsigned xxhash = XXH_versionNumber();
  return {{"HDF5", fmt::format("{}.{}.{}", major, minor, release)},
          {"zstd", ZSTD_versionString()},
          {"xxHash", fmt::format("{}.{}.{}", xxhash / 10000, xxhash / 100 % 100, xxhash % 100)}};
}

}  // namespace shardwright::ckpt
