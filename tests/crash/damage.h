// Damages to a checkpoint, and what must be found of each: told from the bytes and from where chunks and
// tables lie in the whole one, by no code that the reader shares.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/shard.h"
#include "tests/tools/memory_env.h"

namespace shardwright::ckpt {

/// The files of a directory by name.
using FileSet = std::map<std::string, std::shared_ptr<const FileBytes>>;

/// Bytes [begin, end) of a shard that are one stored chunk.
struct ChunkPlaceInFile {
  std::uint64_t begin, end;
  std::string tensor, kind;
};

/// A whole checkpoint, with where things lie in its shards.
struct Whole {
  FileSet files;
  std::uint64_t step = 0;
  struct Sections {
    std::uint64_t table_begin = 0, table_end = 0;
    std::vector<ChunkPlaceInFile> chunks;
  };
  std::map<std::string, Sections> shards;
};

inline Whole read_whole(Env& env, const std::string& path) {
  Whole whole;
  for (const std::string& name : env.list(path)) {
    const auto file = env.open(path + "/" + name);
    FileBytes bytes(file->size());
    file->read(0, bytes);
    whole.files[name] = std::make_shared<const FileBytes>(std::move(bytes));
  }
  const Checkpoint checkpoint = Checkpoint::open(env, path);
  whole.step = checkpoint.commit().step;
  const Manifest& m = checkpoint.manifest();
  for (const FileRecord& file : m.files)
    whole.shards[file.name] = {file.table_address, file.table_address + file.table_bytes, {}};
  for (const BoxEntry& box : m.boxes) {
    const StateEntry& state = m.states[box.state];
    for (std::uint64_t row = box.first_chunk; row < box.first_chunk + box.chunks; ++row) {
      const ChunkRow& chunk = checkpoint.shard(box.file).table()[row];
      whole.shards[m.files[box.file].name].chunks.push_back(
          {chunk.address, chunk.address + chunk.stored_bytes, m.tensors[state.tensor].name, state.kind});
    }
  }
  return whole;
}

/// What verify has to say: code, file, tensor, kind.
using Finding = std::tuple<std::string, std::string, std::string, std::string>;

/// The findings of one shard that is not as `good` has it.
inline std::set<Finding> shard_findings(const std::string& name, const FileBytes& bytes,
                                        const FileBytes& good, const Whole::Sections& sections) {
  if (bytes.size() != good.size()) return {{"size", name, "", ""}};
  if (bytes == good) return {};
  std::vector<char> in_chunk(good.size(), 0);
  std::set<Finding> findings;
  for (const ChunkPlaceInFile& chunk : sections.chunks) {
    std::fill(in_chunk.begin() + static_cast<std::ptrdiff_t>(chunk.begin),
              in_chunk.begin() + static_cast<std::ptrdiff_t>(chunk.end), 1);
    if (!std::equal(good.begin() + static_cast<std::ptrdiff_t>(chunk.begin),
                    good.begin() + static_cast<std::ptrdiff_t>(chunk.end),
                    bytes.begin() + static_cast<std::ptrdiff_t>(chunk.begin)))
      findings.insert({"chunk", name, chunk.tensor, chunk.kind});
  }
  bool table = false, rest = false;
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (bytes[i] == good[i] || in_chunk[i]) continue;
    rest = true;
    table = table || (i >= sections.table_begin && i < sections.table_end);
  }
  if (table) return {{"digest", name, "", ""}};  // nothing can be found by a table that is not to be trusted
  if (rest) findings.insert({"digest", name, "", ""});
  return findings;
}

/// All findings for a directory at `step`. COMMIT decides which of `wholes` the other files are measured by.
inline std::set<Finding> expected_findings(const FileSet& files, std::uint64_t step,
                                           const std::vector<const Whole*>& wholes) {
  const auto commit = files.find("COMMIT");
  const Whole* vouched = nullptr;
  for (const Whole* whole : wholes)
    if (commit != files.end() && *commit->second == *whole->files.at("COMMIT")) vouched = whole;
  if (vouched == nullptr) return {{"commit", "COMMIT", "", ""}};
  std::set<Finding> findings;
  if (vouched->step != step) findings.insert({"commit", "COMMIT", "", ""});
  const auto manifest = files.find("manifest.h5");
  const FileBytes& good = *vouched->files.at("manifest.h5");
  if (manifest == files.end() || *manifest->second != good) {
    findings.insert({manifest == files.end()                   ? "missing_file"
                     : manifest->second->size() != good.size() ? "size"
                                                               : "digest",
                     "manifest.h5", "", ""});
    return findings;
  }
  for (const auto& [name, bytes] : files)
    if (!vouched->files.contains(name)) findings.insert({"path", name, "", ""});
  for (const auto& [name, sections] : vouched->shards) {
    const auto file = files.find(name);
    if (file == files.end())
      findings.insert({"missing_file", name, "", ""});
    else
      findings.merge(shard_findings(name, *file->second, *vouched->files.at(name), sections));
  }
  return findings;
}

/// True if a scan, which looks at no content of shards, has to see it.
inline bool is_structural(const std::set<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    const auto& [code, file, tensor, kind] = finding;
    return code == "commit" || code == "missing_file" || code == "size" || file == "manifest.h5";
  });
}

/// True if loading has to meet it: all but files that are too many.
inline bool is_met_by_loading(const std::set<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return std::get<0>(finding) != "path"; });
}

inline const std::string kByteFlipped = "byte flipped";

/// `what` says where, `kind` names the class.
struct Damage {
  std::string kind;
  std::string what;
  FileSet files;
};

/// Another whole checkpoint, of which files may be mixed in.
struct Other {
  std::string what;
  const Whole* whole;
};

/// Calls `visit` for every damage: each byte, with one bit of it flipped;
/// truncations at every 512 bytes and one beside them; each page of 4 KiB zeroed; files swapped, duplicated,
/// removed, and mixed with those of `others`.
class Damages {
 public:
  using Visit = std::function<void(const Damage&)>;
  Damages(const Whole& whole, const std::vector<Other>& others) : whole_(whole), others_(others) {}

  void for_each(const Visit& visit) const {
    for (const auto& [name, bytes] : whole_.files) {
      each_byte(name, *bytes, visit);
      each_length(name, *bytes, visit);
      each_page(name, *bytes, visit);
    }
    pairs(visit);
    subsets("removed", whole_.files, visit,
            [](FileSet& files, const std::string& name) { files.erase(name); });
    for (const Other& other : others_) {
      FileSet names = whole_.files;
      names.insert(other.whole->files.begin(), other.whole->files.end());
      subsets("from " + other.what, names, visit, [&](FileSet& files, const std::string& name) {
        const auto found = other.whole->files.find(name);
        if (found == other.whole->files.end())
          files.erase(name);
        else
          files[name] = found->second;
      });
    }
  }

 private:
  void changed(const std::string& kind, const std::string& name, std::uint64_t at, FileBytes bytes,
               const Visit& visit) const {
    Damage damage{kind, fmt::format("{} at {}", name, at), whole_.files};
    damage.files[name] = std::make_shared<const FileBytes>(std::move(bytes));
    visit(damage);
  }

  void each_byte(const std::string& name, const FileBytes& bytes, const Visit& visit) const {
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      FileBytes copy = bytes;
      copy[at] ^= std::byte{1} << (at % 8);
      changed(kByteFlipped, name, at, std::move(copy), visit);
    }
  }

  void each_length(const std::string& name, const FileBytes& bytes, const Visit& visit) const {
    std::set<std::size_t> lengths{bytes.size() - 1, bytes.size() + 1};
    for (std::size_t at = 0; at <= bytes.size(); at += 512)
      for (const std::size_t length : {at - 1, at, at + 1})
        if (length < bytes.size()) lengths.insert(length);
    for (const std::size_t length : lengths) {
      FileBytes copy = bytes;
      copy.resize(length);
      changed(length < bytes.size() ? "truncated" : "a byte longer", name, length, std::move(copy), visit);
    }
  }

  void each_page(const std::string& name, const FileBytes& bytes, const Visit& visit) const {
    for (std::size_t at = 0; at < bytes.size(); at += 4096) {
      FileBytes copy = bytes;
      std::fill(copy.begin() + static_cast<std::ptrdiff_t>(at),
                copy.begin() + static_cast<std::ptrdiff_t>(std::min(at + 4096, copy.size())), std::byte{0});
      if (copy != bytes) changed("page zeroed", name, at, std::move(copy), visit);
    }
  }

  void pairs(const Visit& visit) const {
    for (const auto& [a, a_bytes] : whole_.files) {
      for (const auto& [b, b_bytes] : whole_.files) {
        if (a == b) continue;
        Damage copied{"copied over another", fmt::format("{} over {}", a, b), whole_.files};
        copied.files[b] = a_bytes;
        visit(copied);
        if (a > b) continue;
        Damage swapped{"swapped", fmt::format("{} and {}", a, b), whole_.files};
        std::swap(swapped.files[a], swapped.files[b]);
        visit(swapped);
      }
      Damage more{"copied to a new name", a, whole_.files};
      more.files["rank-00041.h5"] = a_bytes;
      visit(more);
    }
  }

  /// Every combination of the files but none and all of them.
  template <class Change>
  void subsets(const std::string& kind, const FileSet& names, const Visit& visit, Change change) const {
    for (std::uint64_t chosen = 1; chosen + 1 < std::uint64_t{1} << names.size(); ++chosen) {
      Damage damage{kind, "", whole_.files};
      std::uint64_t bit = 1;
      for (const auto& [name, bytes] : names) {
        if ((chosen & bit) != 0) {
          change(damage.files, name);
          damage.what += (damage.what.empty() ? "" : ", ") + name;
        }
        bit *= 2;
      }
      if (damage.files != whole_.files) visit(damage);
    }
  }

  const Whole& whole_;
  const std::vector<Other>& others_;
};

}  // namespace shardwright::ckpt
