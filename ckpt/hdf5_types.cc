#include "ckpt/hdf5_types.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/plugin/zstd_filter.h"

namespace shardwright::ckpt {
namespace {

const char* const kLibrary = "libhdf5";

bool initialise() {
  hbool_t thread_safe = false;
  if (H5open() < 0 || H5is_library_threadsafe(&thread_safe) < 0)
    throw Error(ErrorCode::io, "libhdf5: cannot be initialised; version 1.10.8 or newer is needed");
  if (!thread_safe)
    throw Error(ErrorCode::io, "libhdf5: not thread-safe; Debian's serial build (libhdf5-dev) is");
  hdf5_must(H5Zregister(&shardwright_zstd_filter), "register filter 32015", kLibrary);
  return true;
}

herr_t keep_innermost(unsigned depth, const H5E_error2_t* error, void* text) {
  if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

Hdf5Handle copied(hid_t type) { return {H5Tcopy(type), H5Tclose, "copy a type", kLibrary}; }

/// IEEE-like little-endian float of 16 bits: sign, exponent, mantissa from the top.
Hdf5Handle float16(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Hdf5Handle type = copied(H5T_IEEE_F32LE);
  // Fields before size: the size may not shrink below the fields.
  hdf5_must(H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits), "set a float's fields",
            kLibrary);
  hdf5_must(H5Tset_size(type, 2), "set a float's size", kLibrary);
  hdf5_must(H5Tset_ebias(type, bias), "set a float's bias", kLibrary);
  return type;
}

/// The enumeration that h5py takes for bool.
Hdf5Handle boolean() {
  Hdf5Handle type{H5Tenum_create(H5T_STD_I8LE), H5Tclose, "create an enumeration", kLibrary};
  for (signed char value = 0; value < 2; ++value)
    hdf5_must(H5Tenum_insert(type, value == 0 ? "FALSE" : "TRUE", &value), "add to an enumeration", kLibrary);
  return type;
}

}  // namespace

void prepare_hdf5() {
  static const bool ready = initialise();
  static_cast<void>(ready);
  silence_hdf5();
}

void hdf5_must(herr_t status, const std::string& what, const std::string& path) {
  if (status >= 0) return;
  std::string reason = "no reason given";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &reason);
  throw Error(ErrorCode::io, path + ": libhdf5 failed to " + what + ": " + reason, path);
}

Hdf5Handle hdf5_type(DType type) {
  switch (type) {
    case DType::f32:
      return copied(H5T_IEEE_F32LE);
    case DType::bf16:
      return float16(8, 7, 127);
    case DType::f16:
      return float16(5, 10, 15);
    case DType::f64:
      return copied(H5T_IEEE_F64LE);
    case DType::i8:
      return copied(H5T_STD_I8LE);
    case DType::u8:
      return copied(H5T_STD_U8LE);
    case DType::i16:
      return copied(H5T_STD_I16LE);
    case DType::u16:
      return copied(H5T_STD_U16LE);
    case DType::i32:
      return copied(H5T_STD_I32LE);
    case DType::u32:
      return copied(H5T_STD_U32LE);
    case DType::i64:
      return copied(H5T_STD_I64LE);
    case DType::u64:
      return copied(H5T_STD_U64LE);
    case DType::boolean:
      return boolean();
  }
  throw Error(ErrorCode::usage, "dtype: not one of this version");
}

Hdf5Handle hdf5_string(std::size_t length) {
  Hdf5Handle type = copied(H5T_C_S1);
  hdf5_must(H5Tset_size(type, std::max<std::size_t>(length, 1)), "set a string's size", kLibrary);
  hdf5_must(H5Tset_cset(type, H5T_CSET_UTF8), "set a string's character set", kLibrary);
  hdf5_must(H5Tset_strpad(type, H5T_STR_NULLPAD), "set a string's padding", kLibrary);
  return type;
}

}  // namespace shardwright::ckpt
