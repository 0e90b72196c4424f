// Whether two manifests say the same.
#pragma once

#include <algorithm>

#include "ckpt/manifest.h"

namespace shardwright::fuzz {

inline bool same(const ckpt::Fingerprint& a, const ckpt::Fingerprint& b) {
  return a.h == b.h && a.g == b.g && a.count == b.count;
}
inline bool same(const ckpt::FileRecord& a, const ckpt::FileRecord& b) {
  return a.name == b.name && a.bytes == b.bytes && a.rest == b.rest && a.table_address == b.table_address &&
         a.table_bytes == b.table_bytes && a.table == b.table;
}

inline bool same(const ckpt::Manifest& a, const ckpt::Manifest& b) {
  using namespace ckpt;
  return std::ranges::equal(a.tensors, b.tensors,
                            [](const TensorEntry& x, const TensorEntry& y) {
                              return x.name == y.name && x.shape == y.shape;
                            }) &&
         std::ranges::equal(a.states, b.states,
                            [](const StateEntry& x, const StateEntry& y) {
                              return x.tensor == y.tensor && x.kind == y.kind && x.dtype == y.dtype &&
                                     same(x.fingerprint, y.fingerprint);
                            }) &&
         std::ranges::equal(a.boxes, b.boxes,
                            [](const BoxEntry& x, const BoxEntry& y) {
                              return x.state == y.state && x.file == y.file && x.dataset == y.dataset &&
                                     x.box == y.box && x.chunk == y.chunk && x.first_chunk == y.first_chunk &&
                                     x.chunks == y.chunks;
                            }) &&
         std::ranges::equal(a.files, b.files,
                            [](const FileRecord& x, const FileRecord& y) { return same(x, y); }) &&
         a.description.training == b.description.training && a.description.model == b.description.model &&
         a.description.config == b.description.config && a.description.layout == b.description.layout;
}

}  // namespace shardwright::fuzz
