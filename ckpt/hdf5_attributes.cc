#include "ckpt/hdf5_attributes.h"

#include "ckpt/hdf5_types.h"

namespace shardwright::ckpt {
namespace {

void write(hid_t object, const char* name, hid_t type, hid_t space, const void* value,
           const std::string& path) {
  const Hdf5Handle made(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                        "create an attribute", path);
  hdf5_must(H5Awrite(made, type, value), "write an attribute", path);
}

Hdf5Handle scalar_space(const std::string& path) {
  return {H5Screate(H5S_SCALAR), H5Sclose, "create a dataspace", path};
}

}  // namespace

void write_text_attribute(hid_t object, const char* name, const std::string& text, const std::string& path) {
  write(object, name, hdf5_string(text.size()), scalar_space(path), text.c_str(), path);
}

void write_dims_attribute(hid_t object, const char* name, const Dims& values, const std::string& path) {
  const hsize_t count = values.size();
  const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose, "create a dataspace", path);
  write(object, name, H5T_STD_U64LE, space, values.begin(), path);
}

void write_number_attribute(hid_t object, const char* name, std::uint64_t value, const std::string& path) {
  write(object, name, H5T_NATIVE_UINT64, scalar_space(path), &value, path);
}

}  // namespace shardwright::ckpt
