// The C interface to checkpoints, and the versions and data types that go with them.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "ckpt/capi/last_error.h"
#include "ckpt/capi/shardwright.h"
#include "ckpt/capi/tensors.h"
#include "ckpt/checkpoint.h"
#include "ckpt/scan.h"

using namespace shardwright;  // NOLINT: this file has C functions only
using capi::guarded;
using capi::need;

struct shardwright_checkpoint {
  explicit shardwright_checkpoint(ckpt::Checkpoint opened)
      : checkpoint(std::move(opened)), documents(checkpoint.manifest().description) {}

  const ckpt::StateEntry& state(std::uint64_t index) const {
    const auto& states = checkpoint.manifest().states;
    if (index >= states.size())
      capi::refuse("index: " + std::to_string(index) + "; the checkpoint has " +
                   std::to_string(states.size()) + " tensors, counted from 0");
    return states[index];
  }

  ckpt::Checkpoint checkpoint;
  mutable ckpt::Description documents;
};

extern "C" {

int shardwright_api_version(void) { return SHARDWRIGHT_API_VERSION; }
const char* shardwright_version(void) { return SHARDWRIGHT_VERSION; }
int shardwright_format_version(void) { return ckpt::kFormatVersion; }

size_t shardwright_dtype_size(int dtype) {
  return dtype < 0 || dtype >= static_cast<int>(ckpt::kDTypes) ? 0 : size_of(static_cast<ckpt::DType>(dtype));
}

const char* shardwright_dtype_name(int dtype) {
  if (shardwright_dtype_size(dtype) == 0) return "unknown";
  return name(static_cast<ckpt::DType>(dtype)).data();  // of a literal
}

int shardwright_checkpoint_open(const char* path, shardwright_checkpoint** checkpoint) {
  return guarded([&] {
    need(path, "path");
    need(checkpoint, "checkpoint");
    ckpt::Env& env = ckpt::posix_env();
    *checkpoint =
        new shardwright_checkpoint(ckpt::Checkpoint::open(env, ckpt::resolve_checkpoint(env, path)));
  });
}

void shardwright_checkpoint_close(shardwright_checkpoint* checkpoint) { delete checkpoint; }

int shardwright_checkpoint_info(const shardwright_checkpoint* checkpoint, uint64_t* step, uint64_t* tensors,
                                const char** path) {
  return guarded([&] {
    need(checkpoint, "checkpoint");
    if (step != nullptr) *step = checkpoint->checkpoint.commit().step;
    if (tensors != nullptr) *tensors = checkpoint->checkpoint.manifest().states.size();
    if (path != nullptr) *path = checkpoint->checkpoint.path().c_str();
  });
}

int shardwright_checkpoint_tensor(const shardwright_checkpoint* checkpoint, uint64_t index,
                                  shardwright_tensor* tensor) {
  return guarded([&] {
    need(checkpoint, "checkpoint");
    need(tensor, "tensor");
    const ckpt::StateEntry& state = checkpoint->state(index);
    const ckpt::TensorEntry& entry = checkpoint->checkpoint.manifest().tensors[state.tensor];
    shardwright_tensor out{};
    out.name = entry.name.c_str();
    out.kind = state.kind.c_str();
    out.dtype = static_cast<int32_t>(state.dtype);
    out.ndim = static_cast<uint32_t>(entry.shape.size());
    std::copy(entry.shape.begin(), entry.shape.end(), out.shape);
    out.elements = state.fingerprint.count;
    out.fingerprint[0] = state.fingerprint.h;
    out.fingerprint[1] = state.fingerprint.g;
    *tensor = out;
  });
}

int shardwright_checkpoint_find(const shardwright_checkpoint* checkpoint, const char* name, const char* kind,
                                uint64_t* index) {
  return guarded([&] {
    need(checkpoint, "checkpoint");
    need(name, "name");
    need(kind, "kind");
    need(index, "index");
    const ckpt::Checkpoint& c = checkpoint->checkpoint;
    const auto found = c.find_state(name, kind);
    if (!found)
      throw Error(ErrorCode::mismatch, std::string(name) + " " + kind + ": not in checkpoint " + c.path(),
                  c.path());
    *index = *found;
  });
}

int shardwright_checkpoint_read(const shardwright_checkpoint* checkpoint, uint64_t index,
                                const uint64_t* offset, const uint64_t* shape, void* destination,
                                size_t bytes, int threads) {
  return guarded([&] {
    need(checkpoint, "checkpoint");
    if (threads < 1) capi::refuse("threads: " + std::to_string(threads) + "; at least 1 is right");
    if ((offset == nullptr) != (shape == nullptr))
      capi::refuse("offset and shape: one of them is NULL; both or none is right");
    const ckpt::Checkpoint& c = checkpoint->checkpoint;
    const ckpt::StateEntry& state = checkpoint->state(index);
    const ckpt::TensorEntry& entry = c.manifest().tensors[state.tensor];
    const auto ndim = static_cast<uint32_t>(entry.shape.size());
    const ckpt::Box box = offset == nullptr ? ckpt::Box::whole(entry.shape)
                                            : ckpt::Box{capi::dims_of(ndim, offset, "offset"),
                                                        capi::dims_of(ndim, shape, "shape")};
    capi::check_box(entry.name + " " + state.kind, box, entry.shape, state.dtype, destination, bytes);
    const ckpt::LoadItem item{entry.name,  state.kind, state.dtype,
                              entry.shape, box,        static_cast<std::byte*>(destination)};
    ckpt::LoadOptions options;
    options.threads = threads;
    c.load({&item, 1}, options);
  });
}

int shardwright_checkpoint_document(const shardwright_checkpoint* checkpoint, int document,
                                    const char** json) {
  return guarded([&] {
    need(checkpoint, "checkpoint");
    need(json, "json");
    *json = capi::document_of(checkpoint->documents, document).c_str();
  });
}

}  // extern "C"
