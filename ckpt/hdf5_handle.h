// libhdf5's identifiers as RAII, its status codes as Errors. Included by .cc files only.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "ckpt/error.h"

namespace shardwright::ckpt {

/// Owns one identifier of libhdf5 and closes it. Not thread-safe.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  /// Takes over `id`; a negative one is Error(`code`) saying that `what` failed, with `path`.
  Hdf5Handle(hid_t id, Close close, const std::string& what, const std::string& path,
             ErrorCode code = ErrorCode::io)
      : id_(id), close_(close) {
    if (id < 0) throw Error(code, path + ": libhdf5 failed to " + what, path);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  Close close_;
};

/// Switches off libhdf5's own printing of errors in the calling thread (its error stacks are per thread).
inline void silence_hdf5() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

}  // namespace shardwright::ckpt
