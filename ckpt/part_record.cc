// The part record: JSON and its digest, the one word a writer says to the committer (FORMAT.md, "Part
// records").
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/limits.h"
#include "ckpt/record_fields.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {
namespace {

using nlohmann::json;

json to_json(const Dims& dims) {
  json list = json::array();
  for (std::uint64_t v : dims) list.push_back(v);
  return list;
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::damaged, what); }

Dims dims(const json& object, const char* field) {
  const json& list = list_field(object, field);
  if (list.size() > kMaxDims) refuse(fmt::format("field '{}' is not a list of up to 8", field));
  Dims result;
  for (const json& v : list) {
    if (!v.is_number_unsigned())
      refuse(fmt::format("field '{}' holds something else than whole numbers", field));
    result.push_back(v.get<std::uint64_t>());
  }
  return result;
}

json to_json(const FileRecord& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"rest_xxh3_128", to_hex(file.rest)},
          {"table_addr", file.table_address},
          {"table_bytes", file.table_bytes},
          {"table_xxh3_128", to_hex(file.table)}};
}

FileRecord file_from(const json& object) {
  FileRecord file;
  file.name = text_field(object, "name");
  file.bytes = number_field(object, "bytes");
  file.rest = parse_digest(text_field(object, "rest_xxh3_128"));
  file.table_address = number_field(object, "table_addr");
  file.table_bytes = number_field(object, "table_bytes");
  file.table = parse_digest(text_field(object, "table_xxh3_128"));
  return file;
}

json to_json(const BoxRecord& box) {
  return {{"tensor", box.tensor},
          {"kind", box.kind},
          {"dtype", name(box.dtype)},
          {"global_shape", to_json(box.global_shape)},
          {"offset", to_json(box.box.offset)},
          {"shape", to_json(box.box.shape)},
          {"chunk", to_json(box.chunk)},
          {"dataset", box.dataset},
          {"first_chunk", box.first_chunk},
          {"chunks", box.chunks},
          {"fingerprint", to_hex(box.fingerprint)},
          {"count", box.fingerprint.count}};
}

BoxRecord box_from(const json& object) {
  BoxRecord box;
  box.tensor = text_field(object, "tensor");
  box.kind = text_field(object, "kind");
  box.dtype = parse_dtype(text_field(object, "dtype"));
  box.global_shape = dims(object, "global_shape");
  box.box = {dims(object, "offset"), dims(object, "shape")};
  box.chunk = dims(object, "chunk");
  box.dataset = text_field(object, "dataset");
  box.first_chunk = number_field(object, "first_chunk");
  box.chunks = number_field(object, "chunks");
  box.fingerprint = parse_fingerprint(text_field(object, "fingerprint"), number_field(object, "count"));
  const std::size_t n = box.global_shape.size();
  if (box.box.offset.size() != n || box.box.shape.size() != n || box.chunk.size() != n)
    refuse(fmt::format("box of '{}' has lists of different lengths", box.tensor));
  // Counts are added up, so each must be one.
  if (checked_element_count(box.box.shape) != box.fingerprint.count)
    refuse(fmt::format("box of '{}' has a fingerprint of {} elements", box.tensor, box.fingerprint.count));
  return box;
}

json to_json(const ReplicaRecord& replica) {
  return {{"tensor", replica.tensor},
          {"kind", replica.kind},
          {"offset", to_json(replica.box.offset)},
          {"shape", to_json(replica.box.shape)},
          {"fingerprint", to_hex(replica.fingerprint)},
          {"count", replica.fingerprint.count}};
}

ReplicaRecord replica_from(const json& object) {
  ReplicaRecord replica;
  replica.tensor = text_field(object, "tensor");
  replica.kind = text_field(object, "kind");
  replica.box = {dims(object, "offset"), dims(object, "shape")};
  replica.fingerprint = parse_fingerprint(text_field(object, "fingerprint"), number_field(object, "count"));
  if (replica.box.offset.size() != replica.box.shape.size())
    refuse(fmt::format("replica of '{}' has lists of different lengths", replica.tensor));
  if (checked_element_count(replica.box.shape) != replica.fingerprint.count)
    refuse(fmt::format("replica of '{}' has a fingerprint of {} elements", replica.tensor,
                       replica.fingerprint.count));
  return replica;
}

std::string file_of_rank(int rank, const char* suffix) { return fmt::format("rank-{:05}.{}", rank, suffix); }

}  // namespace

std::string part_name(int rank) { return file_of_rank(rank, "part"); }
std::string shard_name(int rank) { return file_of_rank(rank, "h5"); }

void publish_part(Env& env, const std::string& directory, const Part& part) {
  json document = {{"attempt", part.attempt}, {"rank", part.rank}, {"step", part.step}};
  document["error"] = part.error.empty() ? json(nullptr) : json(part.error);
  document["file"] = part.has_file ? to_json(part.file) : json(nullptr);
  document["boxes"] = json::array();
  for (const BoxRecord& box : part.boxes) document["boxes"].push_back(to_json(box));
  if (!part.replicas.empty()) {
    document["replicas"] = json::array();
    for (const ReplicaRecord& replica : part.replicas) document["replicas"].push_back(to_json(replica));
  }
  // An error's text may quote a path of any bytes; JSON is UTF-8.
  const std::string record = sign_record(document.dump(-1, ' ', false, json::error_handler_t::replace));

  const std::string path = directory + "/" + part_name(part.rank);
  if (record.size() > kMaxPartBytes)
    throw Error(ErrorCode::usage, path + ": larger than 1 GiB; fewer boxes are right", path);
  const std::string temporary = path + ".new";
  {
    const std::unique_ptr<WritableFile> file = env.create(temporary);
    file->write(0, std::as_bytes(std::span(record)));
    file->sync();
  }
  fault_point("part.rename", part.rank, part.step);
  // No fsync of the directory: a part matters only to a committer that lives, and is gone before COMMIT.
  env.rename(temporary, path);
}

Part read_part(Env& env, const std::string& path) {
  const std::string line = open_record(read_file(env, path, kMaxPartBytes), path);
  try {
    const json document = parse_object(line);
    Part part;
    part.attempt = text_field(document, "attempt");
    const std::uint64_t rank = number_field(document, "rank");
    if (rank > std::numeric_limits<int>::max()) refuse("field 'rank' is too large to be one");
    part.rank = static_cast<int>(rank);
    part.step = number_field(document, "step");
    if (!field_of(document, "error").is_null()) part.error = text_field(document, "error");
    if (const json& file = field_of(document, "file"); !file.is_null()) {
      part.has_file = true;
      part.file = file_from(file);
    }
    for (const json& box : list_field(document, "boxes")) part.boxes.push_back(box_from(box));
    if (document.contains("replicas"))
      for (const json& replica : list_field(document, "replicas"))
        part.replicas.push_back(replica_from(replica));
    return part;
  } catch (const Error& error) {
    throw Error(ErrorCode::damaged, fmt::format("{}: not a part record: {}", path, error.what()), path);
  }
}

}  // namespace shardwright::ckpt
