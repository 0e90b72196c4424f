#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/manifest.h"

namespace shardwright::ckpt {
namespace {

[[noreturn]] void refuse(const Part& part, const std::string& what) {
  throw Error(ErrorCode::usage, fmt::format("{}: {}", part_name(part.rank), what));
}

/// What all writers must agree on about one tensor, and one of its states.
struct Joined {
  Dims shape;
  std::map<std::string, StateEntry> kinds;
};

}  // namespace

Manifest assemble(std::span<const Part> parts, Description description) {
  std::map<std::string, Joined> tensors;
  Manifest m;
  for (const Part& part : parts) {
    if (!part.error.empty())
      throw Error(ErrorCode::peer,
                  fmt::format("rank {}: its part of the save failed: {}", part.rank, part.error));
    if (part.has_file) m.files.push_back(part.file);
    for (const BoxRecord& r : part.boxes) {
      auto [at, is_new] = tensors.try_emplace(r.tensor);
      if (is_new) at->second.shape = r.global_shape;
      if (at->second.shape != r.global_shape)
        refuse(part, fmt::format("{} has shape {}; another writer says {}", r.tensor,
                                 to_string(r.global_shape), to_string(at->second.shape)));
      auto [kind, new_kind] = at->second.kinds.try_emplace(r.kind);
      StateEntry& state = kind->second;
      if (new_kind) {
        state.kind = r.kind;
        state.dtype = r.dtype;
      }
      if (state.dtype != r.dtype)
        refuse(part, fmt::format("{} {} has type {}; another writer says {}", r.tensor, r.kind, name(r.dtype),
                                 name(state.dtype)));
      state.fingerprint += r.fingerprint;
    }
  }
  std::sort(m.files.begin(), m.files.end(),
            [](const FileRecord& a, const FileRecord& b) { return a.name < b.name; });
  std::map<std::string, std::uint32_t> file_row;
  for (std::size_t i = 0; i < m.files.size(); ++i) file_row[m.files[i].name] = static_cast<std::uint32_t>(i);

  std::map<std::pair<std::string, std::string>, std::uint32_t> state_row;
  for (auto& [tensor, joined] : tensors) {
    const auto row = static_cast<std::uint32_t>(m.tensors.size());
    m.tensors.push_back({tensor, joined.shape});
    for (auto& [kind, state] : joined.kinds) {
      state_row[{tensor, kind}] = static_cast<std::uint32_t>(m.states.size());
      state.tensor = row;
      m.states.push_back(state);
    }
  }
  for (const Part& part : parts)
    for (const BoxRecord& r : part.boxes) {
      if (r.chunks == 0) continue;  // an empty box: the tensor is listed, nothing is stored
      if (!part.has_file) refuse(part, fmt::format("lists a box of {} without a file", r.tensor));
      m.boxes.push_back({state_row.at({r.tensor, r.kind}), file_row.at(part.file.name), r.dataset, r.box,
                         r.chunk, r.first_chunk, r.chunks});
    }
  std::sort(m.boxes.begin(), m.boxes.end(), [](const BoxEntry& a, const BoxEntry& b) {
    if (a.state != b.state) return a.state < b.state;
    return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(), b.box.offset.begin(),
                                        b.box.offset.end());
  });
  m.description = std::move(description);
  if (const auto breaches = check(m); !breaches.empty())
    throw Error(ErrorCode::usage,
                fmt::format("the parts do not join to a checkpoint: {}{}", breaches[0].message,
                            breaches.size() > 1 ? fmt::format(" (and {} more)", breaches.size() - 1)
                                                : std::string()));
  return m;
}

}  // namespace shardwright::ckpt
