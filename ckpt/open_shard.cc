#include "ckpt/open_shard.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/rest_digest.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Whoever else writes by this rank's name would be mixed with it.
std::unique_ptr<WritableFile> create_shard(Env& env, const std::string& path, int rank) {
  try {
    return env.create_new(path);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::exists) throw;
    throw Error(
        ErrorCode::exists,
        fmt::format("{}: exists already; another process writes as rank {} too, one for each rank is right",
                    path, rank),
        path);
  }
}

}  // namespace

Part empty_part(const ShardTarget& target, int rank, const ShardPlan& plan) {
  Part part;
  part.attempt = target.attempt;
  part.rank = rank;
  part.step = target.step;
  part.boxes = plan.boxes;
  return part;
}

OpenShard::OpenShard(const ShardTarget& target, int rank, const PlannedShard& shard)
    : target_(target),
      rank_(rank),
      plan_(shard.plan),
      path_(target.directory + "/" + shard_name(rank)),
      fingerprints_(plan_.boxes.size()) {
  fault_point("shard.open", rank_, target_.step);
  file_ = create_shard(target_.env, path_, rank_);
  hdf5_.emplace(*file_, path_, target_.form);
  rows_.reserve(plan_.chunks);
}

/// Of the boxes before `end`; the last of them stays open.
void OpenShard::create_datasets(std::size_t end) {
  for (; next_box_ < end; ++next_box_) {
    if (plan_.boxes[next_box_].dataset.empty()) continue;
    dataset_.reset();
    dataset_.emplace(hdf5_->create_dataset(plan_.boxes[next_box_]));
  }
}

void OpenShard::write(const EncodedChunk& chunk) {
  if (rows_.size() == plan_.chunks / 2) fault_point("shard.mid", rank_, target_.step);
  const trace::Span span("write", "bytes", static_cast<std::int64_t>(chunk.stored.size()));
  const Clock::time_point start = Clock::now();
  const BoxRecord& box = *chunk.task.box;
  const auto row = static_cast<std::size_t>(&box - plan_.boxes.data());
  create_datasets(row + 1);
  const std::uint64_t address = hdf5_->write_chunk(*dataset_, box, chunk.task.index, chunk.stored);
  rows_.push_back({address, static_cast<std::uint32_t>(chunk.stored.size()), chunk.raw_bytes, chunk.xxh3_64});
  fingerprints_[row] += chunk.fingerprint;
  if (chunk.task.index + 1 == box.chunks) hdf5_->check_last_chunk(*dataset_, box, rows_.back());
  write_s_ += seconds_since(start);
}

void OpenShard::close() {
  create_datasets(plan_.boxes.size());
  dataset_.reset();
  record_.name = shard_name(rank_);
  record_.table_address = hdf5_->write_table(rows_);
  fault_point("shard.close", rank_, target_.step);
  const trace::Span span("close");
  const Clock::time_point start = Clock::now();
  hdf5_->close();
  hdf5_.reset();
  write_s_ += seconds_since(start);
}

Part OpenShard::seal() {
  // What the system has must be what libhdf5 was given, before anything vouches for it.
  record_.bytes = file_->size();
  const std::vector<std::byte> table = table_bytes(rows_);
  record_.table_bytes = table.size();
  record_.table = xxh3_128(table);
  parse_table(table, record_.bytes, path_);
  {
    const trace::Span span("read back");
    record_.rest = rest_digest(rows_, record_.bytes, [&](std::uint64_t offset, std::span<std::byte> data) {
      file_->read(offset, data);
    });
  }
  std::vector<std::byte> stored_table(table.size());
  file_->read(record_.table_address, stored_table);
  if (stored_table != table)
    throw Error(ErrorCode::io, path_ + ": /chunks reads back differently than written", path_);

  fault_point("shard.fsync", rank_, target_.step);
  {
    const trace::Span span("fsync");
    const Clock::time_point start = Clock::now();
    file_->sync();
    fsync_s_ = seconds_since(start);
  }
  Part part = empty_part(target_, rank_, plan_);
  part.has_file = true;
  part.file = record_;
  for (std::size_t i = 0; i < fingerprints_.size(); ++i) part.boxes[i].fingerprint = fingerprints_[i];
  return part;
}

}  // namespace shardwright::ckpt
