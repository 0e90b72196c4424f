#include "trainer/training_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "ckpt/fault.h"
#include "ckpt/trace.h"
#include "trainer/agreement.h"
#include "trainer/loss_scale.h"
#include "trainer/sample_loss.h"
#include "trainer/stop_signals.h"

namespace shardwright::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// Words that travel with the gradient norm's all-reduce.
enum Word : std::size_t { kLoss, kStop, kHostError, kCheckpointing };
constexpr std::size_t kWords = kCheckpointing + Checkpointing::kWords;

// A line for people at most this often.
constexpr double kSayEvery = 1.0;

double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

}  // namespace

TrainingLoop::TrainingLoop(LoopParts parts, const TrainingState& start)
    : parts_(std::move(parts)),
      state_(start),
      train_step_(parts_.pipeline, parts_.train_data, parts_.config.model.seq_len, parts_.config.batch(),
                  parts_.comms.data->rank(), parts_.comms.data->size()),
      loss_spikes_(parts_.config.health.loss_spike),
      norm_spikes_(parts_.config.health.norm_spike),
      loss_of_checkpoint_(start.loss) {
  if (parts_.config.checkpoint.check_replicas) replicas_ = replicas(parts_.parameters);
}

LoopEnd TrainingLoop::run(std::int64_t last) {
  const std::int64_t every = parts_.config.checkpoint.every;
  if (state_.step == last) save(true);  // --stop-after 0
  while (state_.step < last && !stop_) {
    const bool stepped = step(state_.step + 1);
    const bool ends = state_.step == last || stop_;
    const bool due = stepped && every > 0 && state_.step % every == 0;
    // What is passed over makes no other state: no second checkpoint of a step.
    if ((ends || due) && state_.step != saved_step_) save(ends);
    const std::int64_t eval_every = parts_.config.train.eval_every;
    if (stepped && parts_.valid_data != nullptr && !stop_ && eval_every > 0 && state_.step % eval_every == 0)
      evaluate();
  }
  parts_.checkpointing.settle();
  parts_.log.saves(parts_.checkpointing.counts());
  together(*parts_.comms.world, [&] {
    if (parts_.log.failure()) throw *parts_.log.failure();
    // The reason is rank 0's to tell.
    if (parts_.comms.world->rank() == 0 && !parts_.checkpointing.last_failure().empty())
      throw Error(ErrorCode::given_up, parts_.checkpointing.last_failure());
  });
  return state_.step < last ? LoopEnd::preempted : LoopEnd::done;
}

bool TrainingLoop::step(std::int64_t number) {
  const trace::Span span("step", "step", number);
  const Clock::time_point start = Clock::now();
  const int rank = parts_.comms.world->rank();
  const Config& config = parts_.config;
  const std::int64_t global_batch = config.train.global_batch;
  const std::uint64_t at = static_cast<std::uint64_t>(number);
  parts_.progress.enter(Phase::step);
  ckpt::fault_point("step.begin", rank, at);

  const std::vector<std::int64_t> samples = samples_of_step(parts_.order, state_.samples, global_batch);
  if (bad_batches_.contains(state_.samples)) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    skip(number, kUnknown, kUnknown, "rollback", samples);
    return false;
  }
  parts_.parameters.zero_gradients();
  const double loss_sum =
      train_step_.run(samples, state_.samples, rank, number, parts_.progress, state_.loss_scale);
  parts_.optimizer.reduce_gradients();

  std::array<double, kWords> words{};
  words[kLoss] = ckpt::faulty_value("step.loss", loss_sum, rank, at);
  words[kStop] = stop_requested() ? 1 : 0;
  words[kHostError] = parts_.log.failure() ? 1 : 0;
  const std::span<double> saving = std::span(words).subspan(kCheckpointing);
  parts_.checkpointing.put_words(saving);
  const StepResult norm = parts_.optimizer.norm(words, state_.loss_scale);
  parts_.checkpointing.take_words(saving);
  const double loss =
      words[kLoss] / (static_cast<double>(global_batch) * static_cast<double>(config.model.seq_len));

  if (words[kHostError] > 0)
    stop_for(parts_.log.failure().value_or(Error(ErrorCode::io, "rank 0 cannot write the run's records")));
  stop_ = words[kStop] > 0;
  if (!norm.finite || !std::isfinite(loss)) {
    pass_over(number, loss, norm, samples);
    return false;
  }
  skips_in_row_ = 0;

  ckpt::fault_point("step.optimizer", rank, at);
  const double lr = learning_rate(config.optim, number, config.train.steps);
  parts_.optimizer.update(norm, lr, number, [&](const Parameter& p, const char* kind, const ckpt::Box& box) {
    parts_.checkpointing.before_write(p.spec->name, kind, box);
  });

  StepRecord record;
  record.loss_scale = state_.loss_scale;
  record.skipped_steps = state_.skipped_steps;
  grow_loss_scale(state_, config.train);
  state_.step = number;
  state_.samples += global_batch;
  state_.loss = loss;
  parts_.progress.step_done(number);
  watch_spikes(number, loss, norm.grad_norm);

  record.step = number;
  record.generation = parts_.generation;
  record.loss = loss;
  record.grad_norm = norm.grad_norm;
  record.lr = lr;
  record.samples = state_.samples;
  const double elapsed = seconds(start);
  record.tokens_per_s = static_cast<double>(global_batch * config.model.seq_len) / elapsed;
  record.step_ms = 1e3 * elapsed;
  record.ckpt_stall_ms = parts_.checkpointing.take_stall_ms();
  record.layout = parts_.parameters.layout().string();
  record.ranks = parts_.comms.world->size();
  if (config.train.log_samples) record.sample_ids = samples;
  if (!memory_) memory_ = largest_peaks();
  record.memory = *memory_;
  parts_.log.step(record);
  say(record, number == 1 || number == config.train.steps || stop_);
  return true;
}

void TrainingLoop::pass_over(std::int64_t number, double loss, const StepResult& norm,
                             const std::vector<std::int64_t>& samples) {
  const Config::Health& health = parts_.config.health;
  if (std::isfinite(loss) && shrink_loss_scale(state_)) {
    skip(number, loss, norm.grad_norm, "overflow", samples);
    return;
  }
  const Error error(
      ErrorCode::nonfinite,
      fmt::format("step {}: the loss is {} and the gradient norm {}; finite ones (a lower learning rate, "
                  "gradient clipping, other data, or a [health] on_nonfinite that goes on)",
                  number, loss, norm.grad_norm));
  if (health.on_nonfinite == "rollback") {
    go_back(error, state_.samples);
    return;
  }
  if (health.on_nonfinite == "stop" || ++skips_in_row_ > health.max_skips) stop_for(error);
  skip(number, loss, norm.grad_norm, "nonfinite", samples);
}

void TrainingLoop::skip(std::int64_t number, double loss, double grad_norm, const char* reason,
                        const std::vector<std::int64_t>& samples) {
  state_.samples += parts_.config.train.global_batch;
  ++state_.skipped_steps;
  SkipRecord record{number,         parts_.generation, loss,   grad_norm,
                    state_.samples, state_.loss_scale, reason, {}};
  if (parts_.config.train.log_samples) record.sample_ids = samples;
  parts_.log.skipped(record);
}

void TrainingLoop::go_back(const Error& why, std::int64_t samples) {
  if (++rollbacks_ > parts_.config.health.max_skips) stop_for(why);
  parts_.checkpointing.settle();
  parts_.log.line(fmt::format("{}", why.what()));
  try {
    state_ = parts_.last_checkpoint();
  } catch (const AgreedError& none) {
    throw AgreedError(
        Error(ErrorCode::nonfinite, fmt::format("{}; going back: {}", why.what(), none.what())));
  }
  saved_step_ = state_.step;
  bad_batches_.insert(samples);
  parts_.log.event("rolled_back", fmt::format(R"({{"step":{},"samples":{}}})", state_.step, samples));
}

void TrainingLoop::watch_spikes(std::int64_t number, double loss, double grad_norm) {
  const double most = parts_.config.health.loss_spike;
  if (const auto saved = std::exchange(loss_of_checkpoint_, std::nullopt);
      saved && most > 0 && loss > most * *saved)
    parts_.log.leap(number, loss, *saved);
  if (const auto usual = loss_spikes_.add(loss)) parts_.log.spike(number, "loss", loss, *usual);
  if (const auto usual = norm_spikes_.add(grad_norm))
    parts_.log.spike(number, "grad_norm", grad_norm, *usual);
}

kernels::MemoryBytes TrainingLoop::largest_peaks() {
  kernels::MemoryBytes peaks = kernels::memory_peaks();
  std::array<std::int64_t, kernels::kMemoryUses> most{};
  std::ranges::copy(peaks, most.begin());
  parts_.comms.world->all_reduce_max(std::span<std::int64_t>(most));
  std::ranges::copy(most, peaks.begin());
  return peaks;
}

void TrainingLoop::say(const StepRecord& record, bool always) {
  const double now = now_s();
  if (!always && now - said_at_s_ < kSayEvery) return;
  said_at_s_ = now;
  parts_.log.line(fmt::format("step {}  loss {:.4f}  norm {:.3f}  lr {:.3g}  {:.0f} tok/s", record.step,
                              record.loss, record.grad_norm, record.lr, record.tokens_per_s));
}

void TrainingLoop::evaluate() {
  const trace::Span span("eval", "step", state_.step);
  parts_.progress.enter(Phase::eval);
  const Config& config = parts_.config;
  const std::int64_t positions = config.model.seq_len;
  const std::int64_t tokens = parts_.valid_data->samples(positions) * positions;
  double sum = loss_over_share(parts_.pipeline, *parts_.valid_data, positions, config.train.micro_batch,
                               parts_.comms.data->rank(), parts_.comms.data->size(),
                               [&] { parts_.progress.advance(); });
  parts_.comms.world->all_reduce_sum(std::span(&sum, 1));
  const double loss = sum / static_cast<double>(tokens);
  parts_.log.eval(state_.step, loss, tokens);
  parts_.log.line(fmt::format("step {}  validation loss {:.4f}", state_.step, loss));
}

void TrainingLoop::save(bool must) {
  if (const std::string tensor = not_finite(); !tensor.empty()) {
    const Error error(
        ErrorCode::nonfinite,
        fmt::format("step {}: {} has a value that is not finite, so there is no checkpoint of it; "
                    "finite ones (a lower learning rate)",
                    state_.step, tensor));
    // A batch passed over now would not mend the state: only an older one helps.
    if (parts_.config.health.on_nonfinite != "rollback") stop_for(error);
    go_back(error, state_.samples - parts_.config.train.global_batch);
    return;
  }
  saved_step_ = state_.step;
  const Config& config = parts_.config;
  ckpt::Description description;
  description.training = to_json(state_);
  description.model = reshard::to_json(parts_.parameters.model().config);
  description.config = to_json(config);
  description.layout = reshard::to_json(parts_.parameters.layout(), parts_.parameters.model());
  for (const Replica& replica : replicas_)
    ckpt::faulty_memory("save.replica", replica.memory, parts_.comms.world->rank(),
                        static_cast<std::uint64_t>(state_.step));
  parts_.checkpointing.due(state_.step, parts_.parameters.save_items(),
                           save_items(replicas_, parts_.parameters), std::move(description), must);
}

std::string TrainingLoop::not_finite() {
  const trace::Span span("look for non-finite values");
  // A finite loss and norm do not make a finite update: the learning rate may be absurd.
  kernels::Stream stream(kernels::DeviceKind::cpu);
  std::string tensor;
  for (const Parameter& p : parts_.parameters.all()) {
    const ckpt::Box& box = p.placed.writes;
    const auto count = static_cast<std::int64_t>(box.elements());
    const std::uint64_t owned = row_offset(p.optimizer_box, box);
    for (const float* values : {p.master, p.exp_avg, p.exp_avg_sq})
      if (values != nullptr && !kernels::all_finite(stream, values + owned, count)) tensor = p.spec->name;
  }
  // What is offloaded was looked at as it was written.
  if (const OffloadedState* state = parts_.parameters.offloaded(); state != nullptr && state->not_finite())
    tensor = parts_.parameters.all()[*state->not_finite()].spec->name;
  std::int64_t bad = tensor.empty() ? 0 : 1;
  parts_.comms.world->all_reduce_max(std::span(&bad, 1));
  if (bad == 0) return {};
  for (const std::string& name : parts_.comms.world->all_gather(tensor))
    if (!name.empty()) return name;
  return {};
}

void TrainingLoop::stop_for(const Error& error) {
  // A save in work is of an earlier, good step: let it end.
  parts_.checkpointing.settle();
  throw AgreedError(error);
}

}  // namespace shardwright::trainer
