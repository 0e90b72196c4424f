#include "trainer/data_parallel.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "ckpt/trace.h"

namespace shardwright::trainer {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t align(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Kinds that a unit may have tensors of, each with padding to itself where it passes through.
constexpr std::array kKinds{BucketOf::tensor_copies, BucketOf::stage_copies, BucketOf::own};
constexpr std::uint64_t kPadding = kKinds.size() * kAlignment / sizeof(float);

kernels::Memory buffer(std::size_t bytes) {
  return {kernels::DeviceKind::cpu, bytes, kernels::MemoryUse::buffers};
}

std::size_t bytes_of(const Parameter& p, const Bucket::Run& run) {
  return run.elements * kernels::element_size(p.value.type);
}

std::byte* place_of(const kernels::Elements& values, std::uint64_t offset) {
  return static_cast<std::byte*>((values + static_cast<std::int64_t>(offset)).data);
}

}  // namespace

PassageMemory passage_memory(const ParameterMemory& memory, int ranks, std::uint64_t round_elements) {
  PassageMemory passage;
  if (ranks == 1 || memory.zero == 0) return passage;
  for (const UnitMemory& unit : memory.units) {
    passage.send_elements = std::max(passage.send_elements, std::min(unit.held, round_elements) + kPadding);
    passage.receive_elements =
        std::max(passage.receive_elements, std::min(unit.owned, round_elements) + kPadding);
    if (memory.zero < 3) continue;
    const std::uint64_t most = 4 * (round_elements + kPadding);
    passage.gather_bytes = std::max(passage.gather_bytes, std::min(unit.value_bytes + 4 * kPadding, most));
  }
  return passage;
}

DataParallel::DataParallel(Parameters& parameters, Communicator& data, kernels::Stream& stream,
                           std::uint64_t round_elements)
    : parameters_(parameters), data_(data), stream_(stream), zero_(parameters.memory().zero) {
  if (data_.size() == 1 || zero_ == 0) return;
  const auto ranks = static_cast<std::uint64_t>(data_.size());
  const std::uint64_t share = std::max<std::uint64_t>(round_elements / ranks, 1);
  const std::size_t units = parameters_.memory().units.size();
  buckets_.reserve(units * kKinds.size());  // rounds point into it
  rounds_.resize(units);
  for (std::size_t unit = 0; unit < units; ++unit) {
    for (const BucketOf kind : kKinds) {
      Bucket bucket(parameters_, unit, kind, data_.size(), share);
      if (bucket.empty()) continue;
      buckets_.push_back(std::move(bucket));
      for (std::int64_t round = 0; round < buckets_.back().rounds(); ++round)
        rounds_[unit].emplace_back(&buckets_.back(), round);
    }
  }
  const PassageMemory memory =
      passage_memory(parameters_.memory(), data_.size(), std::max(round_elements, ranks));
  send_ = buffer(memory.send_elements * sizeof(float));
  receive_ = buffer(memory.receive_elements * sizeof(float));
  gather_ = buffer(memory.gather_bytes);
  sending_.memory = {send_.data(), send_.bytes()};
  receiving_.memory = {receive_.data(), receive_.bytes()};
  gathering_.memory = {gather_.data(), gather_.bytes()};
}

std::byte* DataParallel::Passage::take(std::size_t bytes) {
  if (memory.size() - used < align(bytes)) return nullptr;
  std::byte* const taken = memory.data() + used;
  used += align(bytes);
  return taken;
}

void DataParallel::need_values(std::size_t unit, std::size_t next) {
  for (Round& round : reductions_) round.transfer->advance();
  if (rounds_.empty() || zero_ < 3) return;
  assert(coming_ == kNoUnit || coming_ == unit);
  if (in_slot(unit) != unit) {
    const trace::Span span("gather", "unit", static_cast<std::int64_t>(unit));
    if (coming_ != unit) started_ = 0;
    coming_ = unit;
    do {
      gather_more();
      in_slot(unit) = unit;
      finish_gathers(gathering_);
    } while (started_ < rounds_[unit].size());
    coming_ = kNoUnit;
  }
  if (next == kNoUnit || in_slot(next) == next) return;
  coming_ = next;
  started_ = 0;
  gather_more();
}

void DataParallel::gather_more() {
  while (started_ < rounds_[coming_].size() && start_gather(rounds_[coming_][started_], gathering_))
    ++started_;
}

void DataParallel::begin_gradients(std::size_t unit) {
  if (rounds_.empty() || zero_ < 2) return;
  const std::span<float> gradients = parameters_.gradients(unit);
  kernels::zero(stream_, gradients.data(), std::ssize(gradients));
}

void DataParallel::end_gradients(std::size_t unit) {
  if (rounds_.empty() || zero_ < 2) return;
  stream_.synchronize();
  const trace::Span span("reduce", "unit", static_cast<std::int64_t>(unit));
  reduce(unit);
}

void DataParallel::reduce(std::size_t unit) {
  for (const Place& place : rounds_[unit]) {
    if (start_reduction(place)) continue;
    finish_reductions();
    [[maybe_unused]] const bool started = start_reduction(place);
    assert(started);
  }
}

void DataParallel::reduce_gradients() {
  if (data_.size() == 1) return;
  const trace::Span span("reduce");
  stream_.synchronize();
  if (zero_ == 0) {
    all_reduce_in_place();
    return;
  }
  if (zero_ == 1)
    for (std::size_t unit = 0; unit < rounds_.size(); ++unit) reduce(unit);
  finish_reductions();
}

void DataParallel::all_reduce_in_place() {
  // What lies together goes together, copies apart from the rest: bit for bit, as in buckets.
  std::vector<const Parameter*> in_memory;
  for (const Parameter& p : parameters_.all()) in_memory.push_back(&p);
  std::ranges::sort(in_memory, {}, &Parameter::grad);
  for (std::size_t i = 0; i < in_memory.size();) {
    const std::size_t first = i;
    const BucketOf kind = bucket_of(in_memory[first]->placed);
    while (i < in_memory.size() && bucket_of(in_memory[i]->placed) == kind) ++i;
    float* const begin = in_memory[first]->grad;
    float* const end = in_memory[i - 1]->grad + in_memory[i - 1]->placed.holds.elements();
    data_.all_reduce_sum(std::span(begin, end));
  }
}

bool DataParallel::start_reduction(const Place& place) {
  const auto [bucket, number] = place;
  std::vector<std::int64_t> counts;
  for (int r = 0; r < data_.size(); ++r) {
    counts.push_back(0);
    for (const Bucket::Run& run : bucket->runs(number, r))
      counts.back() += static_cast<std::int64_t>(run.elements);
  }
  const auto all = static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(data_.rank())]);
  const Passage before = sending_;
  std::byte* const packed = sending_.take(all * sizeof(float));
  std::byte* const sums = packed == nullptr ? nullptr : receiving_.take(own * sizeof(float));
  if (sums == nullptr) {
    sending_ = before;
    return false;
  }
  Round round{bucket, number, packed, reinterpret_cast<float*>(sums), nullptr};
  float* next = reinterpret_cast<float*>(packed);
  for (int r = 0; r < data_.size(); ++r) {
    for (const Bucket::Run& run : bucket->runs(number, r)) {
      kernels::copy(stream_, parameters_.all()[run.parameter].grad + run.offset, next,
                    static_cast<std::int64_t>(run.elements));
      next += run.elements;
    }
  }
  stream_.synchronize();
  round.transfer = data_.start_reduce_scatter_sum({reinterpret_cast<const float*>(packed), all},
                                                  {round.sums, own}, counts);
  reductions_.push_back(std::move(round));
  return true;
}

void DataParallel::finish_reductions() {
  for (Round& round : reductions_) {
    round.transfer->wait();
    const float* next = round.sums;
    for (const Bucket::Run& run : round.bucket->runs(round.number, data_.rank())) {
      float* const piece = parameters_.all()[run.parameter].grad_piece + run.piece_offset;
      const auto count = static_cast<std::int64_t>(run.elements);
      // Sums over micro-batches, or the one sum in the gradient's own place.
      if (zero_ >= 2)
        kernels::add(stream_, next, piece, count);
      else
        kernels::copy(stream_, next, piece, count);
      next += run.elements;
    }
  }
  stream_.synchronize();
  reductions_.clear();
  sending_.used = receiving_.used = 0;
}

bool DataParallel::start_gather(const Place& place, Passage& passage) {
  const auto [bucket, number] = place;
  std::vector<std::int64_t> bytes;
  for (int r = 0; r < data_.size(); ++r) {
    bytes.push_back(0);
    for (const Bucket::Run& run : bucket->runs(number, r))
      bytes.back() += static_cast<std::int64_t>(bytes_of(parameters_.all()[run.parameter], run));
  }
  const auto all = static_cast<std::size_t>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
  std::byte* const packed = passage.take(all);
  if (packed == nullptr) return false;
  Round round{bucket, number, packed, nullptr, nullptr};
  std::byte* own = packed + std::accumulate(bytes.begin(), bytes.begin() + data_.rank(), std::int64_t{0});
  for (const Bucket::Run& run : bucket->runs(number, data_.rank())) {
    const Parameter& p = parameters_.all()[run.parameter];
    std::memcpy(own, place_of(p.value_piece, run.piece_offset), bytes_of(p, run));
    own += bytes_of(p, run);
  }
  round.transfer = data_.start_all_gather({packed, all}, bytes);
  gathers_.push_back(std::move(round));
  return true;
}

void DataParallel::finish_gathers(Passage& passage) {
  for (Round& round : gathers_) {
    round.transfer->wait();
    const std::byte* next = round.packed;
    for (int r = 0; r < data_.size(); ++r) {
      for (const Bucket::Run& run : round.bucket->runs(round.number, r)) {
        const Parameter& p = parameters_.all()[run.parameter];
        std::memcpy(place_of(p.value, run.offset), next, bytes_of(p, run));
        next += bytes_of(p, run);
      }
    }
  }
  gathers_.clear();
  passage.used = 0;
}

void DataParallel::spread_values() {
  for (const Parameter& p : parameters_.all())
    // Who writes an offloaded master writes its value as well.
    if (p.value.type != kernels::ElementType::f32 && p.master != nullptr)
      kernels::convert(stream_, p.master, p.value_piece,
                       static_cast<std::int64_t>(p.optimizer_box.elements()));
  stream_.synchronize();
  if (rounds_.empty()) return;
  if (zero_ >= 3) {
    assert(gathers_.empty());
    in_slot_[0] = in_slot_[1] = kNoUnit;
    return;
  }
  const trace::Span span("gather");
  for (const std::vector<Place>& unit : rounds_) {
    for (const Place& place : unit) {
      if (start_gather(place, sending_)) continue;
      finish_gathers(sending_);
      [[maybe_unused]] const bool started = start_gather(place, sending_);
      assert(started);
    }
  }
  finish_gathers(sending_);
}

}  // namespace shardwright::trainer
